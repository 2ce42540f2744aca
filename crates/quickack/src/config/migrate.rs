//! The native form of a `nutcracker.yml`: the same configuration, with the names of our own and
//! with units. Comments of the file are not kept.

use std::fmt::Write;

use super::directives::{Directive, GLOBAL, Kind, POOL};
use super::draft::Setting;
use super::file::{ConfigFile, Entry, Node, Shape};
use super::list;
use super::value::quoted;
use super::{Config, family};

/// Returns the native form of the file that `config` was compiled from.
pub fn native(config: &Config) -> String {
    let mut out = String::new();
    let Ok(file) = ConfigFile::parse(&config.text) else { return out };
    let blocks = file.entries.iter().filter_map(|entry| {
        let is_of = |name: Option<&str>| match entry.key.as_str() {
            "global" => name.is_none() || name == Some("global"),
            key => name == Some(key),
        };
        let pool = config.blocks.iter().skip(1).find(|block| {
            block.tenant().is_none() && block.pool().is_some() && is_of(block.pool())
        });
        Some((entry, pool.or(config.blocks.first())?))
    });
    for (entry, block) in blocks {
        let Shape::Map(entries) = &entry.value.shape else { continue };
        if !out.is_empty() {
            out.push('\n');
        }
        let _ = writeln!(out, "{}:", quoted(&entry.key));
        let written = |name: &str| entries.iter().any(|entry| entry.key == name);
        for setting in &block.settings {
            let Some(entry) = entries.iter().find(|entry| entry.key == setting.name) else {
                continue;
            };
            match block.pool() {
                Some(_) => pool_line(setting, entry, &written, &mut out),
                None => line(GLOBAL, setting, entry, &mut out),
            }
        }
    }
    out
}

/// Writes a directive of a pool under the name of our own.
fn pool_line(setting: &Setting, entry: &Entry, written: &dyn Fn(&str) -> bool, out: &mut String) {
    let word = setting.file.as_deref().unwrap_or_default();
    let (name, value) = match (setting.name, word) {
        ("redis", "on") => ("protocol", family::REDIS),
        ("redis", _) => ("protocol", proto::PROTOCOLS[0].name()),
        ("auto_eject_hosts", "on") => ("on_failure", "eject"),
        ("auto_eject_hosts", _) => ("on_failure", "fail_fast"),
        // It sets nothing here.
        ("timeout", "0") => return,
        _ => return line(POOL, setting, entry, out),
    };
    // The file may say it in both ways.
    if !written(name) {
        let _ = writeln!(out, "  {name}: {value}");
    }
}

fn line<D>(table: &[Directive<D>], setting: &Setting, entry: &Entry, out: &mut String) {
    let directive = table.iter().find(|directive| directive.name == setting.name);
    let shown = setting.file.clone().unwrap_or_default();
    let value = match directive.map(|directive| &directive.kind) {
        Some(Kind::Servers(_)) => {
            if let Some(written) = list::written(&entry.value) {
                let _ = writeln!(out, "  {}: {written}", setting.name);
                return;
            }
            let _ = writeln!(out, "  {}:", setting.name);
            if let Shape::List(nodes) = &entry.value.shape {
                nodes.iter().for_each(|node| {
                    let _ = writeln!(out, "   - {}", quoted(word_of(node)));
                });
            }
            return;
        }
        Some(Kind::Secret(_)) => quoted(word_of(&entry.value)),
        // In the form of YAML already.
        Some(Kind::Tag(_)) => shown,
        Some(kind) if kind.is_list() && shown.starts_with(['[', '{']) => shown,
        _ => quoted(&shown),
    };
    let _ = writeln!(out, "  {}: {value}", setting.name);
}

fn word_of(node: &Node) -> &str {
    match &node.shape {
        Shape::Word(word) => word,
        Shape::List(_) | Shape::Map(_) | Shape::Nothing => "",
    }
}
