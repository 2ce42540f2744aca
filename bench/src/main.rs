//! The benchmark as its own program, so that `cargo xtask bench` runs it as a release build.

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    bench::run(&arguments)
}
