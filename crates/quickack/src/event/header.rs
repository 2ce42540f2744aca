//! PROXY headers: a balancer's first bytes name the client behind it (versions 1 and 2,
//! <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>).
//!
//! The readers here find the end of the header, so that it may come in any pieces and stays
//! bounded; a parser judges a whole one. Until then the service does not know the client: a
//! balancer that connects only to see whether we are there costs nothing.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use proxy::Time;

/// The reader of a client's header, which has not come as a whole yet.
pub struct HeaderReader {
    pub fd: OwnedFd,
    pub pool: u32,
    pub tcp: bool,
    pub from: Option<IpAddr>,
    /// The bytes of the header that have come.
    said: Vec<u8>,
    /// Tells this reader from another that had its place before.
    number: u64,
}

/// All readers, by place.
#[derive(Default)]
pub struct HeaderReaders {
    places: Vec<Option<HeaderReader>>,
    free: Vec<usize>,
    /// In the order in which they came.
    due: VecDeque<Due>,
    next: u64,
}

/// The end of the patience with a reader.
#[derive(Clone, Copy)]
struct Due {
    at: usize,
    number: u64,
    deadline: Time,
}

/// How far the header has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More must come.
    Partial,
    /// So many of the new bytes belonged to the header; the rest is the client's.
    Whole(usize),
    /// It is no header.
    Broken(&'static str),
}

impl HeaderReaders {
    pub fn add(&mut self, arrival: super::accept::Arrival, now: Time) -> usize {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.next += 1;
        let number = self.next;
        let super::accept::Arrival { fd, pool, tcp, from, .. } = arrival;
        self.places[at] = Some(HeaderReader { fd, pool, tcp, from, said: Vec::new(), number });
        self.due.push_back(Due { at, number, deadline: now.after(PATIENCE_US) });
        at
    }

    pub fn find(&mut self, at: usize) -> Option<&mut HeaderReader> {
        self.places.get_mut(at)?.as_mut()
    }

    /// The places of the readers for which `is` is true.
    pub fn those(&self, is: impl Fn(&HeaderReader) -> bool) -> Vec<usize> {
        let here = self.places.iter().enumerate();
        here.filter(|(_, place)| place.as_ref().is_some_and(&is)).map(|(at, _)| at).collect()
    }

    pub fn remove(&mut self, at: usize) -> Option<HeaderReader> {
        let reader = self.places.get_mut(at)?.take()?;
        self.free.push(at);
        Some(reader)
    }

    /// When the next one is overdue. Readers that have finished are forgotten here, not earlier.
    pub fn due(&mut self) -> Option<Time> {
        while let Some(Due { at, number, deadline }) = self.due.front().copied() {
            if self.find(at).is_some_and(|reader| reader.number == number) {
                return Some(deadline);
            }
            self.due.pop_front();
        }
        None
    }

    /// A reader whose time is over; it is removed.
    pub fn overdue(&mut self, now: Time) -> Option<HeaderReader> {
        self.due().filter(|due| *due <= now)?;
        let Due { at, .. } = self.due.pop_front()?;
        self.remove(at)
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl HeaderReader {
    /// Nothing has come yet.
    pub fn is_silent(&self) -> bool {
        self.said.is_empty()
    }

    /// The client's address by a whole header; a balancer may say that it does not know it.
    pub fn source(&self) -> Option<IpAddr> {
        let source = match self.said.starts_with(V1_START) {
            true => {
                let line = self.said.split_inclusive(|byte| *byte == b'\n').next()?;
                match ppp::v1::Header::try_from(line).ok()?.addresses {
                    ppp::v1::Addresses::Tcp4(it) => IpAddr::V4(it.source_address),
                    ppp::v1::Addresses::Tcp6(it) => IpAddr::V6(it.source_address),
                    ppp::v1::Addresses::Unknown => return None,
                }
            }
            // The address in a balancer's own connection is to be ignored.
            false if self.said.get(V2_START.len()) == Some(&V2_LOCAL) => return None,
            // The parser ignores the bytes behind the header, which are the client's.
            false => match ppp::v2::Header::try_from(self.said.as_slice()).ok()?.addresses {
                ppp::v2::Addresses::IPv4(it) => IpAddr::V4(it.source_address),
                ppp::v2::Addresses::IPv6(it) => IpAddr::V6(it.source_address),
                ppp::v2::Addresses::Unspecified | ppp::v2::Addresses::Unix(_) => return None,
            },
        };
        Some(source.to_canonical())
    }

    /// Some bytes have come.
    pub fn feed(&mut self, bytes: &[u8]) -> Progress {
        let before = self.said.len();
        // Never more than a header can be: bytes behind it are not kept here.
        let room = (HEADER_LEN_MAX - before).min(bytes.len());
        self.said.extend_from_slice(&bytes[..room]);
        match judge(&self.said) {
            Progress::Whole(len) => {
                assert!(len > before, "a header that is whole is not fed any more");
                Progress::Whole(len - before)
            }
            progress => progress,
        }
    }
}

/// Returns the length of the header that `said` begins with, if it is whole.
pub fn length(said: &[u8]) -> Option<usize> {
    match judge(said) {
        Progress::Whole(len) => Some(len),
        Progress::Partial | Progress::Broken(_) => None,
    }
}

/// Whether `said` begins with a header.
fn judge(said: &[u8]) -> Progress {
    if said.starts_with(&V2_START[..said.len().min(V2_START.len())]) {
        judge_v2(said)
    } else if said.starts_with(&V1_START[..said.len().min(V1_START.len())]) {
        judge_v1(said)
    } else {
        Progress::Broken("no PROXY header")
    }
}

fn judge_v1(said: &[u8]) -> Progress {
    let line = &said[..said.len().min(V1_LEN_MAX)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        let is_short = said.len() < V1_LEN_MAX;
        return if is_short {
            Progress::Partial
        } else {
            Progress::Broken("a line without an end")
        };
    };
    match ppp::v1::Header::try_from(&said[..end + 2]) {
        Ok(_) => Progress::Whole(end + 2),
        Err(_) => Progress::Broken("a line that is not a PROXY header"),
    }
}

fn judge_v2(said: &[u8]) -> Progress {
    let Some(len) = said.get(V2_HEAD - 2..V2_HEAD) else { return Progress::Partial };
    let whole = V2_HEAD + usize::from(u16::from_be_bytes([len[0], len[1]]));
    if whole > HEADER_LEN_MAX {
        return Progress::Broken("a binary header that is too long");
    }
    if said.len() < whole {
        return Progress::Partial;
    }
    // A balancer's own connection: whatever else it says of itself is to be ignored
    // (proxy-protocol.txt, 2.2).
    if said[V2_START.len()] == V2_LOCAL {
        return Progress::Whole(whole);
    }
    match ppp::v2::Header::try_from(&said[..whole]) {
        Ok(_) => Progress::Whole(whole),
        Err(_) => Progress::Broken("an invalid binary header"),
    }
}

/// How version 1 begins.
const V1_START: &[u8] = b"PROXY ";
/// The longest line of version 1, its end included.
const V1_LEN_MAX: usize = 107;
/// How version 2 begins.
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command LOCAL.
const V2_LOCAL: u8 = 0x20;
/// Its fixed part, with the length of the rest in its last two bytes.
const V2_HEAD: usize = 16;
/// The longest header that is accepted: one with long TLVs of version 2.
pub const HEADER_LEN_MAX: usize = 2048;
/// How long a client may take to send it, microseconds.
const PATIENCE_US: u64 = 5_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut header = V2_START.to_vec();
        header.extend([0x20 | command, family]);
        header.extend((rest.len() as u16).to_be_bytes());
        header.extend(rest);
        header
    }

    fn header_reader() -> HeaderReader {
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        HeaderReader { fd, pool: 1, tcp: true, from: None, said: Vec::new(), number: 1 }
    }

    /// Feeds `bytes` in pieces of `size`. How many bytes were the header, or why it is none.
    fn feed(bytes: &[u8], size: usize) -> Result<usize, &'static str> {
        let mut reader = header_reader();
        let mut fed = 0;
        for piece in bytes.chunks(size) {
            match reader.feed(piece) {
                Progress::Partial => fed += piece.len(),
                Progress::Whole(used) => return Ok(fed + used),
                Progress::Broken(why) => return Err(why),
            }
        }
        Err("partial")
    }

    #[test]
    fn a_header_is_waited_for_five_seconds_and_the_first_to_come_is_the_first_to_go() {
        let arrival = || {
            let fd = std::fs::File::open("/dev/null").unwrap().into();
            super::super::accept::Arrival { fd, pool: 1, tcp: true, has_header: true, from: None }
        };
        let mut readers = HeaderReaders::default();
        assert_eq!(readers.due(), None);
        let places: Vec<usize> = (0..3).map(|at| readers.add(arrival(), Time(at))).collect();
        assert_eq!(readers.due(), Some(Time(5_000_000)));
        assert!(readers.overdue(Time(4_999_999)).is_none());
        assert!(readers.overdue(Time(5_000_000)).is_some_and(|reader| reader.number == 1));
        assert!(readers.overdue(Time(5_000_000)).is_none());
        // One whose header has come is not waited for; its place is another's.
        assert!(readers.remove(places[1]).is_some() && readers.remove(places[1]).is_none());
        assert_eq!(readers.due(), Some(Time(5_000_002)));
        let place = readers.add(arrival(), Time(9));
        assert!(place == places[1] && readers.find(place).is_some_and(|it| it.number == 4));
        assert_eq!(readers.those(|reader| reader.number > 3), [place]);
        assert_eq!(readers.due(), Some(Time(5_000_002)));
        assert_eq!(readers.len(), 2);
    }

    /// In every size of pieces the same.
    fn check(bytes: &[u8], expected: Result<usize, &'static str>) {
        for size in 1..=bytes.len() {
            assert_eq!(feed(bytes, size), expected, "{bytes:?} in pieces of {size}");
        }
    }

    fn with_request(mut header: Vec<u8>) -> Vec<u8> {
        header.extend(b"get foo\r\n");
        header
    }

    #[test]
    fn whole_headers_in_all_pieces() {
        let lines = [
            "PROXY TCP4 192.0.2.1 198.51.100.2 56324 11211\r\n",
            "PROXY TCP6 2001:db8::1 2001:db8::2 56324 11211\r\n",
            "PROXY UNKNOWN\r\n",
            "PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n",
        ];
        for line in lines {
            check(&with_request(line.into()), Ok(line.len()));
        }
        let four = [&[192, 0, 2, 1, 198, 51, 100, 2][..], &[220, 4, 43, 203]].concat();
        let tlv = [&four[..], &[0x04, 0, 3, 0, 0, 0]].concat();
        let (six, unix) = ([7; 36], [0; 216]);
        let headers = [
            v2(1, 0x11, &four),
            v2(1, 0x11, &tlv),
            v2(1, 0x21, &six),
            v2(1, 0x31, &unix),
            v2(0, 0x00, &[]),
            v2(0, 0x00, &[1; 536]),
            v2(0, 0x11, &[]),
            v2(0, 0x99, &[1, 2, 3]),
        ];
        for header in headers {
            let len = header.len();
            check(&with_request(header), Ok(len));
        }
    }

    #[test]
    fn a_whole_header_says_who_the_client_is_or_that_nobody_knows() {
        let four = [&[192, 0, 2, 1, 198, 51, 100, 2][..], &[220, 4, 43, 203]].concat();
        let mapped = [&[0; 10][..], &[255, 255, 192, 0, 2, 1], &[1; 20]].concat();
        for (header, source) in [
            (b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 11211\r\n".to_vec(), Some("192.0.2.1")),
            (b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 11211\r\n".to_vec(), Some("2001:db8::1")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (v2(1, 0x11, &four), Some("192.0.2.1")),
            (v2(1, 0x21, &mapped), Some("192.0.2.1")),
            (v2(1, 0x31, &[0; 216]), None),
            (v2(0, 0x11, &four), None),
        ] {
            let mut reader = header_reader();
            let (len, with) = (header.len(), with_request(header));
            assert_eq!(reader.feed(&with), Progress::Whole(len));
            let source = source.map(|address| address.parse().unwrap());
            assert_eq!(reader.source(), source, "{}", with.escape_ascii());
        }
    }

    #[test]
    fn what_is_no_header_is_said_so() {
        check(b"get foo\r\n", Err("no PROXY header"));
        check(b"PROXIES\r\n", Err("no PROXY header"));
        check(b"\r\nget", Err("no PROXY header"));
        for line in [
            "PROXY TCP4 192.0.2.1 198.51.100.2 56324\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.2 56324 99999\r\n",
            "PROXY TCP4 2001:db8::1 198.51.100.2 1 2\r\n",
            "PROXY UDP4 192.0.2.1 198.51.100.2 1 2\r\n",
            "PROXY \r\n",
        ] {
            check(line.as_bytes(), Err("a line that is not a PROXY header"));
        }
        let senseless = "an invalid binary header";
        check(&v2(2, 0x11, &[0; 12]), Err(senseless));
        check(&v2(1, 0x41, &[0; 12]), Err(senseless));
        check(&v2(1, 0x11, &[0; 11]), Err(senseless));
    }

    #[test]
    fn a_header_is_bounded() {
        let endless = [V1_START, &[b'x'; 200][..]].concat();
        for size in [1, 7, 206] {
            assert_eq!(feed(&endless, size), Err("a line without an end"));
        }
        let longest = v2(0, 0, &[0; HEADER_LEN_MAX - V2_HEAD]);
        assert_eq!(feed(&with_request(longest), 4096), Ok(HEADER_LEN_MAX));
        let longer = v2(0, 0, &[0; HEADER_LEN_MAX - V2_HEAD + 1]);
        for size in [1, 100, 4096] {
            assert_eq!(feed(&longer, size), Err("a binary header that is too long"));
        }
    }

    #[test]
    fn any_start_of_a_header_is_only_partial() {
        for header in [b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 11211\r\n".to_vec(), v2(0, 0, b"")]
        {
            for len in 1..header.len() {
                check(&header[..len], Err("partial"));
            }
        }
    }
}
