//! The reader of replies, also on bytes that no server would send.

use std::path::Path;

use super::*;

fn frame(input: &[u8]) -> Result<(Frame, usize), Stop> {
    Reader::default().frame(input)
}

#[test]
fn the_code_of_a_failed_command_in_a_script_is_found_in_every_version() {
    let begin = "-ERR Error running script (call to f_0123): @user_script:";
    for (line, code) in [
        (format!("{begin}9: @user_script: 9: -READONLY You can't write\r\n"), "READONLY"),
        (format!("{begin}9: @user_script: 9: -NOREPLICAS Not enough\r\n"), "NOREPLICAS"),
        (format!("{begin}12: WRONGTYPE Operation against a key\r\n"), "WRONGTYPE"),
        (format!("{begin}3: @user_script: 3: Unknown Redis command\r\n"), "ERR"),
        (format!("{begin}3: attempt to index a nil value\r\n"), "ERR"),
        ("-OOM command not allowed script: 0123, on @user_script:1.\r\n".to_owned(), "OOM"),
    ] {
        let Value::Refusal(refusal) = reply(&line) else { panic!("{line}") };
        assert_eq!(refusal.code, code, "{line}");
    }
}

fn reply(input: &str) -> Value {
    match frame(input.as_bytes()) {
        Ok((Frame::Reply(value), taken)) if taken == input.len() => value,
        other => panic!("{input:?}: {other:?}"),
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

#[test]
fn every_kind_of_reply_is_read() {
    for (input, expected) in [
        ("+OK\r\n", text("OK")),
        (":-7\r\n", Value::Integer(-7)),
        ("$3\r\na\r\n\r\n", text("a\r\n")),
        ("$-1\r\n", Value::Null),
        ("*-1\r\n", Value::Null),
        ("_\r\n", Value::Null),
        ("#t\r\n", Value::Integer(1)),
        (",1.5\r\n", text("1.5")),
        ("(123456789012345678901\r\n", text("123456789012345678901")),
        ("=6\r\ntxt:ab\r\n", text("ab")),
        ("*2\r\n:1\r\n*0\r\n", Value::Array(vec![Value::Integer(1), Value::Array(vec![])])),
        ("~1\r\n+a\r\n", Value::Array(vec![text("a")])),
        ("%1\r\n+k\r\n+v\r\n", Value::Array(vec![text("k"), text("v")])),
        ("|1\r\n+ttl\r\n:3\r\n:4\r\n", Value::Integer(4)),
    ] {
        assert_eq!(reply(input), expected, "{input:?}");
    }
    let Value::Refusal(moved) = reply("-MOVED 17 10.0.0.1:7001\r\n") else { panic!() };
    assert_eq!((&*moved.code, moved.address()), ("MOVED", Some(("10.0.0.1".into(), 7001))));
    let (push, _) = frame(b">2\r\n+message\r\n+c\r\n").unwrap();
    assert_eq!(push, Frame::Push(vec![text("message"), text("c")]));
}

#[test]
fn a_frame_cut_anywhere_needs_more() {
    let whole = b"*4\r\n$5\r\nab\r\nc\r\n:12\r\n%1\r\n+k\r\n=5\r\ntxt:v\r\n-ERR no\r\n";
    for cut in 0..whole.len() {
        assert_eq!(frame(&whole[..cut]), Err(Stop::More), "cut at {cut}");
    }
    assert_eq!(frame(whole).unwrap().1, whole.len());
}

#[test]
fn nonsense_is_refused_and_makes_no_room() {
    for input in [
        "HTTP/1.1 400 Bad Request\r\n",
        "$99999999999\r\n",
        "$-2\r\n",
        "$x\r\n",
        "$1\r\nabc",
        ":1\rx",
        "=2\r\nab\r\n",
    ] {
        assert_eq!(frame(input.as_bytes()), Err(Stop::Nonsense), "{input:?}");
    }
    assert_eq!(frame("*1\r\n".repeat(99).as_bytes()), Err(Stop::Nonsense), "too deep");
    assert_eq!(frame(&[b'+'; LONGEST_LINE + 2]), Err(Stop::Nonsense), "an endless line");
    assert_eq!(frame(b"*1000000\r\n"), Err(Stop::More), "announced, not there");
}

#[test]
fn a_value_that_is_too_large_is_refused_before_it_arrives() {
    for input in ["*500000000\r\n", "%600000\r\n", "$67108865\r\n", "*2\r\n$67108860\r\n"] {
        assert_eq!(frame(input.as_bytes()), Err(Stop::Nonsense), "{input:?}");
    }
    let lists = "*1000\r\n".to_owned() + &"*2000\r\n*0\r\n".repeat(3);
    assert_eq!(frame(lists.as_bytes()), Err(Stop::More));
    let nested = "*1000000\r\n*1000000\r\n";
    assert_eq!(frame(nested.as_bytes()), Err(Stop::Nonsense), "together they are too many");
    // Many strings, each small enough.
    let (part, mut reader) = (format!("$999999\r\n{}\r\n", "a".repeat(999_999)), Reader::default());
    let mut input = b"*1000\r\n".to_vec();
    let refused = (0..100).find_map(|_| {
        input.extend_from_slice(part.as_bytes());
        reader.frame(&input).err().filter(|stop| *stop == Stop::Nonsense)
    });
    assert!(refused.is_some() && input.len() < LARGEST + part.len(), "{}", input.len());
}

/// Every frame of the bytes as they arrive in pieces of this size, how many were taken, why there
/// are no more, and how many bytes were looked at.
fn read(input: &[u8], piece: usize) -> (Vec<Frame>, usize, Stop, usize) {
    let (mut reader, mut frames) = (Reader::default(), Vec::new());
    let (mut taken, mut arrived) = (0, 0);
    loop {
        match reader.frame(&input[taken..arrived]) {
            Ok((frame, length)) => {
                frames.push(frame);
                taken += length;
            }
            Err(Stop::More) if arrived < input.len() => {
                arrived = (arrived + piece).min(input.len());
            }
            Err(stop) => return (frames, taken, stop, reader.examined),
        }
        assert!(taken <= arrived, "more was taken than there is");
        assert!(reader.examined <= 2 * input.len(), "bytes are looked at again and again");
    }
}

#[test]
fn a_large_frame_in_small_pieces_is_looked_at_once() {
    let mut input = b"*20000\r\n".to_vec();
    for number in 0..10_000 {
        input.extend_from_slice(format!("$10\r\n{number:010}\r\n:{number}\r\n").as_bytes());
    }
    let large = format!("${}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
    let line = format!("+{}\r\n", "y".repeat(LONGEST_LINE - 10));
    for input in [&input[..], large.as_bytes(), line.as_bytes()] {
        for piece in [1, 7, 1000, input.len()] {
            let (frames, taken, _, examined) = read(input, piece);
            assert_eq!((frames.len(), taken), (1, input.len()));
            assert!(examined <= input.len(), "{examined} of {} by {piece}", input.len());
        }
    }
}

/// Streams from servers, a file for each beginning. Input that once broke the reader is added there.
fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/replies");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 10, "seeds are missing");
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// However the bytes are cut, the same is read, and nothing is looked at twice.
fn check(input: &[u8], piece: usize) {
    let whole = read(input, input.len().max(1));
    let cut = read(input, piece);
    assert_eq!((&cut.0, cut.1, cut.2), (&whole.0, whole.1, whole.2), "{input:?} by {piece}");
    assert!(cut.3 <= input.len(), "{} of {}: {input:?} by {piece}", cut.3, input.len());
}

#[test]
fn every_seed_is_read_alike_however_it_is_cut() {
    for seed in seeds() {
        (1..seed.len() + 2).for_each(|piece| check(&seed, piece));
    }
}

/// xorshift64*: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    }
}

/// Changes a seed as a fuzzer would: bytes, pieces, numbers and kinds.
fn mutate(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        let (at, other) = (random.below(bytes.len() + 1), &seeds[random.below(seeds.len())]);
        let kinds = b"+-:#_$=!*~%|>,(\r\n-10987654321";
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] = random.below(256) as u8,
            1 if at < bytes.len() => bytes[at] = kinds[random.below(kinds.len())],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, kinds[random.below(kinds.len())]),
            4 => {
                let from = random.below(other.len());
                let piece = other[from..].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let end = at + random.below(bytes.len() + 1 - at);
                bytes.drain(at..end);
            }
        }
    }
    bytes
}

/// A fuzzer that needs no nightly compiler. `TENURE_FUZZ_ROUNDS` makes it go on for longer; what
/// it finds is printed, and belongs among the seeds.
#[test]
fn no_mutated_seed_breaks_the_reader() {
    let rounds = std::env::var("TENURE_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let (seeds, mut random) = (seeds(), Random(0x9e37_79b9_7f4a_7c15));
    for _ in 0..rounds.unwrap_or(50_000) {
        let bytes = mutate(&seeds, &mut random);
        check(&bytes, 1 + random.below(40));
    }
}

/// A value, nested at most so deep, and its bytes in one of its forms. Attributes, which mean nothing here,
/// come before any value.
fn random_value(random: &mut Random, depth: usize, out: &mut Vec<u8>) -> Value {
    if random.below(6) == 0 {
        let pairs = random.below(3);
        out.extend_from_slice(format!("|{pairs}\r\n").as_bytes());
        for _ in 0..2 * pairs {
            random_value(random, depth.saturating_sub(1), out);
        }
    }
    let kinds = if depth == 0 { 9 } else { 12 };
    match random.below(kinds) {
        0 => {
            let number = random.below(usize::MAX) as i64 - (1 << 30);
            out.extend_from_slice(format!(":{number}\r\n").as_bytes());
            Value::Integer(number)
        }
        1 => {
            let null = ["_", "$-1", "*-1", "=-1", "~-1", "%-1"][random.below(6)];
            out.extend_from_slice(format!("{null}\r\n").as_bytes());
            Value::Null
        }
        2 => {
            let set = random.below(2) == 1;
            out.extend_from_slice(if set { b"#t\r\n" } else { b"#f\r\n" });
            Value::Integer(i64::from(set))
        }
        3 => {
            let refusals =
                [("-MOVED 1 h:2\r\n", "MOVED", "1 h:2"), ("!8\r\nERR a\r\nb\r\n", "ERR", "a\r\nb")];
            let (bytes, code, words) = refusals[random.below(2)];
            out.extend_from_slice(bytes.as_bytes());
            Value::Refusal(Refusal { code: code.into(), words: words.into() })
        }
        4 => {
            let line = [",1.5", ",inf", "(12345678901234567890123", "+OK", "+"][random.below(5)];
            out.extend_from_slice(line.as_bytes());
            out.extend_from_slice(b"\r\n");
            text(&line[1..])
        }
        kind @ 5..=8 => {
            let bytes: Vec<u8> =
                (0..random.below(20)).map(|_| b"\r\n$*-1\0\xff"[random.below(8)]).collect();
            let (mark, head) = if kind == 5 { ('=', &b"txt:"[..]) } else { ('$', &b""[..]) };
            out.extend_from_slice(format!("{mark}{}\r\n", head.len() + bytes.len()).as_bytes());
            out.extend_from_slice(&[head, &bytes, b"\r\n"].concat());
            Value::Text(bytes)
        }
        kind => {
            let (mark, pairs) = [('*', 1), ('~', 1), ('%', 2)][kind - 9];
            let length = random.below(4);
            out.extend_from_slice(format!("{mark}{length}\r\n").as_bytes());
            let one = |_| random_value(random, depth - 1, out);
            Value::Array((0..length * pairs).map(one).collect())
        }
    }
}

/// A stream of replies and pushes, and what it says.
fn random_stream(random: &mut Random) -> (Vec<u8>, Vec<Frame>) {
    let (mut bytes, mut frames) = (Vec::new(), Vec::new());
    for _ in 0..1 + random.below(4) {
        frames.push(match random.below(3) {
            0 => {
                let length = 1 + random.below(3);
                bytes.extend_from_slice(format!(">{length}\r\n").as_bytes());
                let parts = (0..length).map(|_| random_value(random, 2, &mut bytes));
                Frame::Push(parts.collect())
            }
            _ => Frame::Reply(random_value(random, 4, &mut bytes)),
        });
    }
    (bytes, frames)
}

/// As [`no_mutated_seed_breaks_the_reader`], from streams of which it is known what they say. Most changes
/// to the bytes of such a stream are met deep inside of it.
#[test]
fn every_stream_is_read_as_it_was_written_and_no_change_to_it_breaks_the_reader() {
    let rounds = std::env::var("TENURE_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..rounds.unwrap_or(10_000) {
        let (bytes, frames) = random_stream(&mut random);
        let piece = 1 + random.below(40);
        let (seen, taken, stop, _) = read(&bytes, piece);
        assert_eq!((&seen, taken, stop), (&frames, bytes.len(), Stop::More), "{bytes:?}");
        let seeds = [bytes];
        check(&mutate(&seeds, &mut random), piece);
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_break_the_reader(bytes: Vec<u8>) {
        check(&bytes, 1);
    }
}
