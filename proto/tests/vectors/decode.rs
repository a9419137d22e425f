//! Decodes a whole message, as its receiver does.

use dafs_proto::view::View;
use dafs_proto::wire::{
    AllocateRequest, Attributes, Authenticate, AuthenticateReply, BATCH_NOTICE_RESULT_SIZE,
    BATCH_RESULT_SIZE, BatchLimits, BatchNotice, BatchReply, BatchRequest, CommitReply, CommitRequest,
    CopyReply, CopyRequest, Crossovers, EagerBufferTerms, Explanation, FenceChange, FenceList, FsStatistics,
    Header, Hello, HelloReply, HintRequest, LimitsReply, ListReadReply, ListRequest, LockRequest,
    LockTestReply, LockTurn, Method, MknodRequest, MountReply, NameRequest, Opcode, OpenRequest,
    PATH_SIZE_MAX, ReadReply, ReadRequest, ReaddirReply, ReaddirRequest, Reader, Recall, RemoveRequest,
    RenameRequest, SeekReply, SeekRequest, SetAttributes, ShareReply, ShareRequest, Statistics, Status,
    Token, TwoNames, UnlockRequest, VIEW_DESCRIPTION_SIZE_MAX, VerifyRequest, ViewDropRequest, ViewRequest,
    ViewSetRequest, WireError, WriteReply, WriteRequest, XattrNames, decode_batch, decode_batch_results,
    decode_datatype, decode_dir_entries, decode_lists, decode_message_pack, decode_noticed_results,
    decode_segments,
};

/// Why a message is not taken.
#[derive(Debug)]
pub(crate) enum Problem {
    /// It ends its session.
    Refused(WireError),
    /// It is answered `INVALID`, or with another status.
    Answered(Status),
}

impl From<WireError> for Problem {
    fn from(error: WireError) -> Self {
        Self::Refused(error)
    }
}

/// What a server makes of a fault in the body or payload of a request.
fn in_request(problem: Problem) -> Problem {
    match problem {
        Problem::Refused(error) => error.answer().map_or(Problem::Refused(error), Problem::Answered),
        answered => answered,
    }
}

impl Problem {
    /// As `spec/vectors/refused.txt` has it.
    pub(crate) fn outcome(&self) -> String {
        match self {
            Self::Refused(WireError::Truncated { .. }) => "refused: ends too early",
            Self::Refused(WireError::TrailingBytes { .. }) => "refused: bytes left over",
            Self::Refused(WireError::TooLarge { .. }) => "refused: beyond a limit",
            Self::Refused(WireError::Invalid { .. }) => "refused: value not allowed",
            Self::Refused(WireError::Body { .. }) => "refused: not the structure",
            Self::Refused(WireError::Reserved { .. }) => "refused: value not allowed",
            Self::Refused(WireError::NameTooLong { .. }) => "refused: beyond a limit",
            Self::Answered(status) => return format!("answered: {}", status.name().unwrap()),
        }
        .to_owned()
    }
}

type Decoded = Result<(), Problem>;

/// Decodes all of a message.
pub(crate) fn decode(head: &[u8], payload: &[u8]) -> Result<Header, Problem> {
    let (header, body) = Header::decode(head, u32::try_from(payload.len()).unwrap())?;
    let is_reply = header.flags.contains(dafs_proto::wire::Flags::REPLY);
    match is_reply {
        false => request(header.opcode, body, payload).map_err(|problem| match header.flags {
            flags if flags.contains(dafs_proto::wire::Flags::CALLBACK) => problem,
            _ => in_request(problem),
        })?,
        true if header.status == Status::OK => reply(header.opcode, body, payload)?,
        true => {
            none("body of a reply that failed", body)?;
            assert!(payload.len() <= 512 && std::str::from_utf8(payload).is_ok(), "words of a failed reply");
        }
    }
    Ok(header)
}

fn request(opcode: Opcode, body: &[u8], payload: &[u8]) -> Decoded {
    match opcode {
        Opcode::Null
        | Opcode::Bye
        | Opcode::Limits
        | Opcode::Statistics
        | Opcode::Exports
        | Opcode::Close
        | Opcode::HandOver
        | Opcode::FenceRead
        | Opcode::CreditTarget => nothing(body, payload),
        Opcode::Hello => message_pack::<Hello>(body, payload),
        Opcode::Authenticate => message_pack::<Authenticate>(body, payload),
        Opcode::Publish => message_pack::<Crossovers>(body, payload),
        Opcode::FenceWrite => message_pack::<FenceChange>(body, payload),
        Opcode::EagerBuffers => eager_buffers(body, payload),
        Opcode::Mount => none("body", body),
        Opcode::OpenToken => {
            none("body", body)?;
            Token::decode(payload)?;
            Ok(())
        }
        Opcode::Lookup
        | Opcode::Getattr
        | Opcode::Readlink
        | Opcode::AccessCheck
        | Opcode::Statfs
        | Opcode::Mkdir => Ok(NameRequest::decode_for(opcode, body).map(drop)?),
        Opcode::Open => Ok(OpenRequest::decode(body).map(drop)?),
        Opcode::Verify => Ok(VerifyRequest::decode(body).map(drop)?),
        Opcode::Remove => Ok(RemoveRequest::decode(body).map(drop)?),
        Opcode::Mknod => Ok(MknodRequest::decode(body).map(drop)?),
        Opcode::Setattr => {
            NameRequest::decode_for(opcode, body)?;
            let mut reader = Reader::new(payload);
            reader.prefixed("path", PATH_SIZE_MAX)?;
            decode_message_pack::<SetAttributes>("attributes to set", reader.rest())?;
            Ok(())
        }
        Opcode::Rename | Opcode::Link => {
            RenameRequest::decode_for(opcode, body)?;
            Ok(TwoNames::decode(payload).map(drop)?)
        }
        Opcode::Symlink => {
            NameRequest::decode_for(opcode, body)?;
            Ok(TwoNames::decode(payload).map(drop)?)
        }
        Opcode::XattrRead | Opcode::XattrWrite | Opcode::XattrList | Opcode::XattrRemove => {
            xattr(opcode, body, payload)
        }
        Opcode::Share => alone(ShareRequest::decode(body).map(drop), payload),
        Opcode::Read => {
            let request = ReadRequest::decode(body)?;
            ranges(request.segment_count, payload)
        }
        Opcode::Write | Opcode::Append => write(opcode, body, payload),
        Opcode::Commit => alone(CommitRequest::decode(body).map(drop), payload),
        Opcode::Truncate | Opcode::Allocate | Opcode::Punch => {
            alone(AllocateRequest::decode_for(opcode, body).map(drop), payload)
        }
        Opcode::CopyRange => alone(CopyRequest::decode(body).map(drop), payload),
        Opcode::Seek => alone(SeekRequest::decode(body).map(drop), payload),
        Opcode::Hint => alone(HintRequest::decode(body).map(drop), payload),
        Opcode::Lock | Opcode::LockTest => alone(LockRequest::decode(body).map(drop), payload),
        Opcode::Unlock => alone(UnlockRequest::decode(body).map(drop), payload),
        Opcode::Readdir => alone(ReaddirRequest::decode(body).map(drop), payload),
        Opcode::ReadList | Opcode::WriteList => {
            let request = ListRequest::decode_for(opcode, body)?;
            let is_inline_write = opcode == Opcode::WriteList && request.method == Method::Inline;
            let inline_len = if is_inline_write { request.len } else { 0 };
            decode_lists(payload, &request, inline_len).map(drop).map_err(answered)
        }
        Opcode::ReadView | Opcode::WriteView => {
            let request = ViewRequest::decode_for(opcode, body)?;
            let is_inline_write = opcode == Opcode::WriteView && request.method == Method::Inline;
            let inline_len = if is_inline_write { request.len } else { 0 };
            request.ranges(payload, inline_len).map(drop).map_err(answered)
        }
        Opcode::ViewSet => view_part(&ViewSetRequest::decode(body)?, payload),
        Opcode::ViewDrop => alone(ViewDropRequest::decode(body).map(drop), payload),
        Opcode::Batch => {
            let request = BatchRequest::decode(body)?;
            let described = request.described_len(payload.len()).map_err(answered)?;
            let limits = BatchLimits { len_max: 1 << 26, reply_max: 1 << 14 };
            decode_batch(&payload[..described], &request, &limits).map(drop).map_err(answered)
        }
        Opcode::Notice => {
            let mut reader = Reader::new(body);
            reader.u32("notice")?;
            assert!(payload.len() <= 512, "words of a notice");
            Ok(reader.finish("notice")?)
        }
        Opcode::Recall => alone(Recall::decode(body).map(drop), payload),
        Opcode::LockTurn => alone(LockTurn::decode(body).map(drop), payload),
        Opcode::BatchDone => {
            let notice = BatchNotice::decode(body)?;
            let operations = payload.len() / BATCH_NOTICE_RESULT_SIZE + 1;
            Ok(decode_noticed_results(payload, &notice, operations).map(drop)?)
        }
    }
}

fn reply(opcode: Opcode, body: &[u8], payload: &[u8]) -> Decoded {
    match opcode {
        Opcode::Null
        | Opcode::Bye
        | Opcode::Close
        | Opcode::HandOver
        | Opcode::Truncate
        | Opcode::Allocate
        | Opcode::Punch
        | Opcode::Hint
        | Opcode::Remove
        | Opcode::Rename
        | Opcode::AccessCheck
        | Opcode::Verify
        | Opcode::Lock
        | Opcode::Unlock
        | Opcode::XattrWrite
        | Opcode::XattrRemove
        | Opcode::ViewSet
        | Opcode::ViewDrop
        | Opcode::Publish
        | Opcode::FenceWrite => nothing(body, payload),
        Opcode::Hello => message_pack::<HelloReply>(body, payload),
        Opcode::Authenticate => message_pack::<AuthenticateReply>(body, payload),
        Opcode::Limits => message_pack::<LimitsReply>(body, payload),
        Opcode::Statistics => message_pack::<Statistics>(body, payload),
        Opcode::Exports => message_pack::<Vec<String>>(body, payload),
        Opcode::Mount => message_pack::<MountReply>(body, payload),
        Opcode::Statfs => message_pack::<FsStatistics>(body, payload),
        Opcode::FenceRead => message_pack::<FenceList>(body, payload),
        Opcode::Lookup
        | Opcode::Open
        | Opcode::OpenToken
        | Opcode::Getattr
        | Opcode::Setattr
        | Opcode::Mkdir
        | Opcode::Mknod
        | Opcode::Link
        | Opcode::Symlink => message_pack::<Attributes>(body, payload),
        Opcode::Readlink | Opcode::XattrRead | Opcode::XattrList => none("body", body),
        Opcode::EagerBuffers => eager_buffers(body, payload),
        Opcode::Share => {
            ShareReply::decode(body)?;
            Ok(Token::decode(payload).map(drop)?)
        }
        Opcode::Read => Ok(ReadReply::decode(body).map(drop)?),
        Opcode::ReadList | Opcode::ReadView => Ok(ListReadReply::decode(body).map(drop)?),
        Opcode::Write | Opcode::Append => alone(WriteReply::decode(body).map(drop), payload),
        Opcode::WriteList | Opcode::WriteView => {
            WriteReply::decode(body)?;
            // Of another length it is none.
            if payload.len() == Explanation::SIZE {
                Explanation::decode(payload)?;
            }
            Ok(())
        }
        Opcode::Commit => alone(CommitReply::decode(body).map(drop), payload),
        Opcode::CopyRange => alone(CopyReply::decode(body).map(drop), payload),
        Opcode::Seek => alone(SeekReply::decode(body).map(drop), payload),
        Opcode::LockTest => alone(LockTestReply::decode(body).map(drop), payload),
        Opcode::Batch => {
            let reply = BatchReply::decode(body)?;
            let data = payload.len().saturating_sub(reply.data as usize);
            let operations = reply.operations as usize;
            assert!(operations * BATCH_RESULT_SIZE < 1 << 20);
            Ok(decode_batch_results(&payload[..data], operations).map(drop)?)
        }
        Opcode::Readdir => {
            ReaddirReply::decode(body)?;
            Ok(decode_dir_entries(payload).map(drop)?)
        }
        Opcode::Notice | Opcode::CreditTarget | Opcode::BatchDone | Opcode::LockTurn | Opcode::Recall => {
            panic!("{opcode:?} is not replied to")
        }
    }
}

fn none(what: &'static str, bytes: &[u8]) -> Decoded {
    Ok(Reader::new(bytes).finish(what)?)
}

fn nothing(body: &[u8], payload: &[u8]) -> Decoded {
    none("body", body)?;
    none("payload", payload)
}

/// A body, and no payload.
fn alone(body: Result<(), WireError>, payload: &[u8]) -> Decoded {
    body?;
    none("payload", payload)
}

fn message_pack<T: serde::de::DeserializeOwned>(body: &[u8], payload: &[u8]) -> Decoded {
    none("body", body)?;
    decode_message_pack::<T>("payload", payload)?;
    Ok(())
}

fn eager_buffers(body: &[u8], payload: &[u8]) -> Decoded {
    let terms = EagerBufferTerms::decode(body)?;
    Ok(decode_segments(payload, terms.count).map(drop)?)
}

/// More than one range is in the payload.
fn ranges(count: u16, payload: &[u8]) -> Decoded {
    match count {
        0 | 1 => none("payload", payload),
        _ => Ok(decode_segments(payload, count).map(drop)?),
    }
}

fn write(opcode: Opcode, body: &[u8], payload: &[u8]) -> Decoded {
    let request = WriteRequest::decode(body)?;
    if opcode == Opcode::Append && request.offset != 0 {
        return Err(WireError::Invalid { what: "offset of an append", value: request.offset }.into());
    }
    match request.method {
        Method::Inline | Method::Eager if request.len as usize != payload.len() => {
            let what = "data of an inline write";
            Err(match (request.len as usize).checked_sub(payload.len()) {
                Some(missing) => WireError::Truncated { what, missing },
                None => WireError::TrailingBytes { what, extra: payload.len() - request.len as usize },
            }
            .into())
        }
        Method::Inline | Method::Eager => Ok(()),
        Method::Direct | Method::ClientInitiated => ranges(request.segment_count, payload),
    }
}

/// A part of a description, and all of it where it is there.
fn view_part(request: &ViewSetRequest, part: &[u8]) -> Decoded {
    let ViewSetRequest { description_len, offset, .. } = *request;
    let room = description_len.checked_sub(offset).map_or(0, |room| room as usize);
    if description_len > VIEW_DESCRIPTION_SIZE_MAX || part.is_empty() || part.len() > room {
        return Err(Problem::Answered(Status::INVALID));
    }
    if part.len() == description_len as usize {
        let datatype = decode_datatype(part).map_err(answered)?;
        View::new(&datatype).map_err(answered)?;
    }
    Ok(())
}

fn xattr(opcode: Opcode, body: &[u8], payload: &[u8]) -> Decoded {
    NameRequest::decode_for(opcode, body)?;
    let names = XattrNames::decode(payload)?;
    match opcode {
        Opcode::XattrWrite => Ok(()),
        _ => none("value of an attribute", names.value),
    }
}

fn answered(error: impl std::fmt::Display) -> Problem {
    assert!(!error.to_string().is_empty(), "the answer is in words");
    Problem::Answered(Status::INVALID)
}
