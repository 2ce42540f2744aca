//! `cargo xtask fuzz [NAME] [--seed N] [--budget N]`: runs one fuzzer, or each in turn.

use std::process::ExitCode;

use fuzz::{FUZZERS, Fuzzer};

/// The default number of inputs, in multiples of each fuzzer's smoke run.
const LONGER: usize = 20;

struct Arguments {
    name: Option<String>,
    seed: u64,
    budget: Option<usize>,
}

fn main() -> ExitCode {
    let arguments = match read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("fuzz: {why}\n\nusage: fuzz [NAME] [--seed N] [--budget N]\n");
            for fuzzer in FUZZERS.iter().chain([&fuzz::CANARY]) {
                eprintln!("  {:14} {}", fuzzer.name, fuzzer.about);
            }
            return ExitCode::from(2);
        }
    };
    let chosen: Vec<&Fuzzer> = match arguments.name.as_deref().map(fuzz::find) {
        Some(fuzzer) => fuzzer.into_iter().collect(),
        None => FUZZERS.iter().collect(),
    };
    for fuzzer in chosen {
        let budget = arguments.budget.unwrap_or(fuzzer.smoke * LONGER);
        println!("fuzz {} --seed {} --budget {budget}", fuzzer.name, arguments.seed);
        // A finding is a panic: its message has the input, and the line above repeats it.
        (fuzzer.run)(arguments.seed, budget);
    }
    ExitCode::SUCCESS
}

fn read(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments { name: None, seed: 1, budget: None };
    while let Some(word) = words.next() {
        let mut number = || {
            let text = words.next().ok_or(format!("{word} needs a number"))?;
            text.parse::<u64>().map_err(|_| format!("{text:?} is no number"))
        };
        match word.as_str() {
            "--seed" => arguments.seed = number()?,
            "--budget" => arguments.budget = Some(number()? as usize),
            name if fuzz::find(name).is_some() => arguments.name = Some(word),
            _ => return Err(format!("there is no fuzzer {word:?}")),
        }
    }
    Ok(arguments)
}
