//! The part of RESP 2 that two requests to a server need.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply. Statuses and bulks are both text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Number(i64),
    List(Vec<Value>),
    Null,
}

impl Value {
    /// Returns its text; empty for a value without text.
    pub fn text(&self) -> &str {
        if let Value::Text(text) = self { text } else { "" }
    }

    pub fn number(&self) -> i64 {
        if let Value::Number(number) = self { *number } else { 0 }
    }

    /// Returns its elements; none for a value that is not a list.
    pub fn list(&self) -> &[Value] {
        if let Value::List(list) = self { list } else { &[] }
    }

    /// Returns the texts of its elements.
    pub fn texts(&self) -> Vec<String> {
        self.list().iter().map(|one| one.text().to_string()).collect()
    }

    /// Returns the value after this name, in a list of names and values.
    pub fn of(&self, name: &str) -> &Value {
        let mut pairs = self.list().chunks_exact(2);
        pairs.find(|pair| pair[0].text() == name).map_or(&Value::Null, |pair| &pair[1])
    }
}

/// Returns a server's replies to `COMMAND` and to `COMMAND DOCS`.
pub fn ask(port: u16) -> Result<[Value; 2]> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"COMMAND\r\nCOMMAND DOCS\r\n")?;
    let mut input = BufReader::new(stream);
    Ok([read(&mut input)?, read(&mut input)?])
}

fn read(input: &mut impl BufRead) -> Result<Value> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let wrong = || Error::new(ErrorKind::InvalidData, format!("{line:?} is no reply"));
    let text = line.trim_end();
    let rest = text.get(1..).ok_or_else(wrong)?;
    let number = || rest.parse::<i64>().map_err(|_| wrong());
    Ok(match text.as_bytes()[0] {
        b'+' => Value::Text(rest.to_string()),
        b':' => Value::Number(number()?),
        b'$' if number()? < 0 => Value::Null,
        b'$' => {
            let mut bytes = vec![0; number()? as usize + 2];
            input.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Value::Text(String::from_utf8(bytes).map_err(|_| wrong())?)
        }
        b'*' if number()? < 0 => Value::Null,
        b'*' => Value::List((0..number()?).map(|_| read(input)).collect::<Result<_>>()?),
        _ => return Err(wrong()),
    })
}
