//! Requests that users write to the guard's socket for streams, and the answers that a client reads
//! there: any bytes are parsed or rejected.

use pagekeeper_streams::stream_request::{StreamAnswer, StreamSums, check_request, request_line};

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    if check_request(data).is_ok() {
        assert!(data.ends_with(b"\n") && data.windows(4).any(|word| word == b"self"), "{data:?}");
    }
    if let Some(answer) = StreamAnswer::parse(data) {
        assert_eq!(StreamAnswer::parse(answer.to_line().as_bytes()), Some(answer));
    }
}

/// Returns the request, and each answer.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let answers = [
        StreamAnswer::Followed,
        StreamAnswer::Refused("too many".to_owned()),
        StreamAnswer::Report(StreamSums { added_bytes: 8192, goes_on: true, ..StreamSums::default() }),
    ];
    let lines = answers.iter().map(StreamAnswer::to_line).chain([request_line()]);
    lines.map(String::into_bytes).collect()
}
