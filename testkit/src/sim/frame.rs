//! A command as a server parses it: canonical, and with all its data.

use std::borrow::Cow;

use crate::wire::{base64, text, whole};

/// A whole command at the start of a connection's input.
pub struct Frame<'a> {
    pub words: Vec<&'a str>,
    pub line_len: usize,
    pub data: &'a [u8],
    pub len: usize,
}

impl Frame<'_> {
    /// Returns the only key, decoded if it is written in base64.
    pub fn key(&self) -> Cow<'_, str> {
        let text = self.words[1];
        let is_coded = self.words[0].starts_with('m') && self.words[2..].contains(&"b");
        if !is_coded {
            return Cow::Borrowed(text);
        }
        let raw = base64::decode(text.as_bytes()).expect("base64");
        Cow::Owned(String::from_utf8(raw).expect("keys are ASCII here"))
    }
}

/// Returns the first command, if it is whole.
pub fn frame(input: &[u8]) -> Option<Frame<'_>> {
    let (line, len) = whole(input, text::command(input))?;
    let words = std::str::from_utf8(line.text).expect("keys and commands are ASCII here");
    let words: Vec<&str> = words.split(' ').collect();
    assert!(words.iter().all(|word| !word.is_empty()), "not canonical: {words:?}");
    assert!(!words.contains(&"noreply"), "a noreply is sent on: {words:?}");
    Some(Frame {
        words,
        line_len: line.text.len() + 2,
        data: &input[line.data.unwrap_or(0..0)],
        len,
    })
}

/// Returns the length of the first command, if it is whole.
pub fn frame_len(input: &[u8]) -> Option<usize> {
    frame(input).map(|frame| frame.len)
}

/// Returns the number of an update, with which its data begin.
pub fn data_number(data: &[u8]) -> u64 {
    let digits = data.iter().take_while(|byte| byte.is_ascii_digit()).count();
    number(std::str::from_utf8(&data[..digits]).expect("digits"))
}

pub fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}
