//! A suite's source: fetched once, pinned, below `target/suites`. The machine's own settings stay
//! unchanged: Python's packages have their own environment, and apt reads its own list of sources.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{FOLDER, Suite};
use crate::{Outcome, root};

/// The place where a project publishes its tests.
pub enum Source {
    /// The source distribution of a Python package.
    Pypi(&'static str),
    /// The upstream part of a Debian source package.
    Debian { package: &'static str, release: &'static str },
}

/// Returns the folder with the suite's source, ready to run.
pub fn fetch(suite: &Suite) -> Result<PathBuf, String> {
    let folder = below().join(format!("{}-{}", suite.name, suite.version));
    python()?;
    if folder.exists() {
        return Ok(folder);
    }
    println!("fetching {} {}", suite.name, suite.version);
    // It gets its own name only when it is complete.
    let new = below().join("new");
    clear(&new)?;
    let archive = match suite.source {
        Source::Pypi(package) => from_pypi(package, suite.version, &new)?,
        Source::Debian { package, release } => from_debian(package, release, suite.version, &new)?,
    };
    let words = ["--strip-components=1", "-xf", &archive];
    finish(Command::new("tar").args(words).current_dir(&new))?;
    finish(Command::new("sh").args(["-ec", suite.made]).current_dir(&new))?;
    std::fs::rename(&new, &folder).map_err(|error| error.to_string())?;
    Ok(folder)
}

/// Returns the folder of everything that is fetched or made.
pub fn below() -> PathBuf {
    root().join("target/suites")
}

/// Returns the Python that has the clients and the dependencies of their tests.
pub fn python() -> Result<PathBuf, String> {
    let venv = below().join("venv");
    let python = venv.join("bin/python");
    let wanted = root().join(FOLDER).join("requirements.txt");
    let has = venv.join("requirements.txt");
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    if read(&has).is_none() || read(&has) != read(&wanted) {
        finish(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        finish(Command::new(&python).args(["-m", "pip", "install", "-qr"]).arg(&wanted))?;
        std::fs::copy(&wanted, &has).map_err(|error| error.to_string())?;
    }
    Ok(python)
}

fn from_pypi(package: &str, version: &str, folder: &Path) -> Result<String, String> {
    let pinned = format!("{package}=={version}");
    let words = ["-m", "pip", "download", "-q", "--no-deps", "--no-binary", package, &pinned];
    finish(Command::new(python()?).args(words).current_dir(folder))?;
    file(folder, |name| name.ends_with(".tar.gz"))
}

/// Fetches from the machine's own mirror; only the release is named here.
fn from_debian(
    package: &str,
    release: &str,
    version: &str,
    folder: &Path,
) -> Result<String, String> {
    let mut command = Command::new("sh");
    command.args(["-ec", APT_SOURCE]).current_dir(folder);
    finish(command.env("package", package).env("release", release).env("version", version))?;
    file(folder, |name| name.starts_with(&format!("{package}_{version}.orig.tar")))
        .map_err(|_| format!("{release} has no {package} {version}"))
}

/// Returns the only file whose name fits.
fn file(folder: &Path, fits: impl Fn(&str) -> bool) -> Result<String, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| fits(name)).ok_or("the archive did not come".to_string())
}

fn clear(folder: &Path) -> Outcome {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Runs a command to its end; a failure is an error.
pub fn finish(command: &mut Command) -> Outcome {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} ended with {status}")),
        Err(error) => Err(format!("cannot run {name}: {error}")),
    }
}

/// Only the upstream archive is needed: a mirror may lack the other parts.
const APT_SOURCE: &str = r#"
    mkdir -p apt/lists/partial
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | head -n1)
    echo "deb-src $uri $release main" > apt/sources
    own() {
        apt-get -qq -o Dir::Etc::SourceList=$PWD/apt/sources -o Dir::Etc::SourceParts=/dev/null \
            -o Dir::State::Lists=$PWD/apt/lists -o Dir::Cache=$PWD/apt \
            -o APT::Sandbox::User=root "$@"
    }
    own update
    own --download-only source $package 2> apt/said \
        || test -f ${package}_$version.orig.tar.* || { cat apt/said; false; }
"#;
