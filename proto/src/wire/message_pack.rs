//! MessagePack as `spec/protocol/wire.md` has it: each value in the form of its type, and in no other.
//!
//! rmp-serde encodes, but does not decode. It takes a map or a binary for a structure, a binary for a string, a number for a name.

use rmp::Marker;
use rmp::decode::{
    NumValueReadError, read_array_len, read_bin_len, read_bool, read_int, read_map_len, read_str_len,
};
use serde::Serialize;
use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, SeqAccess, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use super::WireError;

type Result<T> = std::result::Result<T, Error>;

/// Characters of what a decoder says at most: it repeats what the peer wrote.
const REASON_SHOWN_MAX: usize = 160;

/// Encodes a rare body as a MessagePack array.
pub fn encode_message_pack<T: Serialize>(body: &T) -> Vec<u8> {
    rmp_serde::to_vec(body).expect("our own bodies hold nothing that MessagePack cannot express")
}

/// Decodes a rare body; nothing may follow it. What it allocates is bounded by the bytes, and how deep it goes by the type.
pub fn decode_message_pack<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
) -> std::result::Result<T, WireError> {
    let mut decoder = Decoder { rest: bytes };
    let body =
        T::deserialize(&mut decoder).map_err(|error| WireError::Body { what, reason: shown(&error) })?;
    match decoder.rest.len() {
        0 => Ok(body),
        extra => Err(WireError::TrailingBytes { what, extra }),
    }
}

/// The decoder's words for a log or a terminal, which what the peer wrote must not steer.
fn shown(error: &Error) -> String {
    error.to_string().chars().take(REASON_SHOWN_MAX).flat_map(char::escape_debug).collect()
}

/// Reads values. Their types say in which form each must be: nothing here goes by what the bytes say they are.
struct Decoder<'de> {
    rest: &'de [u8],
}

impl<'de> Decoder<'de> {
    fn marker(&self) -> Result<Marker> {
        self.rest.first().map(|byte| Marker::from_u8(*byte)).ok_or_else(ends_early)
    }

    /// As many bytes as a length has said.
    fn take(&mut self, len: u32) -> Result<&'de [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len as usize).ok_or_else(ends_early)?;
        self.rest = rest;
        Ok(taken)
    }

    fn string(&mut self) -> Result<&'de str> {
        let len = read_str_len(&mut self.rest).map_err(|error| refused("a string", error))?;
        std::str::from_utf8(self.take(len)?).map_err(|_| Error::custom("a string is not UTF-8"))
    }

    fn binary(&mut self) -> Result<&'de [u8]> {
        let len = read_bin_len(&mut self.rest).map_err(|error| refused("a binary", error))?;
        self.take(len)
    }

    fn elements<V: Visitor<'de>>(&mut self, what: &str, max: u32, visitor: V) -> Result<V::Value> {
        let count = read_array_len(&mut self.rest).map_err(|error| refused(what, error))?;
        if count > max {
            return Err(Error::custom(format_args!("an array of {count} for {what} of {max}")));
        }
        let mut elements = Elements { decoder: self, left: count };
        let value = visitor.visit_seq(&mut elements)?;
        match elements.left {
            0 => Ok(value),
            left => Err(Error::custom(format_args!("{left} elements too many for {what}"))),
        }
    }
}

#[cold]
fn ends_early() -> Error {
    Error::custom("it ends too early")
}

#[cold]
fn refused(what: &str, error: impl Into<NumValueReadError>) -> Error {
    match error.into() {
        NumValueReadError::TypeMismatch(marker) => {
            Error::custom(format_args!("{marker:?} in place of {what}"))
        }
        NumValueReadError::OutOfRange => Error::custom(format_args!("{what} out of range")),
        NumValueReadError::InvalidMarkerRead(_) | NumValueReadError::InvalidDataRead(_) => ends_early(),
    }
}

/// All integers in any form whose value fits: their visitors check the range.
macro_rules! integers {
    ($($method:ident $number:ty, $visit:ident;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
                let number = read_int::<$number, _>(&mut self.rest).map_err(|error| refused("a number", error))?;
                visitor.$visit(number)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for &mut Decoder<'de> {
    type Error = Error;

    integers! {
        deserialize_u8 u64, visit_u64;
        deserialize_u16 u64, visit_u64;
        deserialize_u32 u64, visit_u64;
        deserialize_u64 u64, visit_u64;
        deserialize_i64 i64, visit_i64;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_bool(read_bool(&mut self.rest).map_err(|error| refused("a bool", error))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_str(self.string()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_borrowed_bytes(self.binary()?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.marker()? {
            Marker::Null => {
                self.take(1)?;
                visitor.visit_none()
            }
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.elements("an array", u32::MAX, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        self.elements("an array", u32::try_from(len).unwrap_or(u32::MAX), visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.elements(name, u32::try_from(fields.len()).unwrap_or(u32::MAX), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let carries = matches!(self.marker()?, Marker::FixMap(_) | Marker::Map16 | Marker::Map32);
        if carries && read_map_len(&mut self.rest).map_err(|error| refused(name, error))? != 1 {
            return Err(Error::custom(format_args!("a map for {name} that is not of one pair")));
        }
        visitor.visit_enum(Choice { decoder: self, carries })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(Error::custom("a type that the protocol does not have"))
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u128 f32 f64 char unit unit_struct tuple_struct map ignored_any
    }
}

/// The elements of an array, or the fields of a structure.
struct Elements<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: u32,
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    /// An element has a byte at least: whatever the count says, no more memory is asked for.
    fn size_hint(&self) -> Option<usize> {
        Some((self.left as usize).min(self.decoder.rest.len()))
    }
}

/// A value of an enumeration: its name, and behind it what it carries.
struct Choice<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    carries: bool,
}

impl<'de> EnumAccess<'de> for Choice<'_, 'de> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self)> {
        Ok((seed.deserialize(&mut *self.decoder)?, self))
    }
}

impl<'de> VariantAccess<'de> for Choice<'_, 'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        match self.carries {
            false => Ok(()),
            true => Err(Error::custom("a map in place of a name")),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        match self.carries {
            true => seed.deserialize(self.decoder),
            false => Err(Error::custom("a name without what it must carry")),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value> {
        self.decoder.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value> {
        self.decoder.deserialize_any(visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FenceMode, SessionId, SetAttributes, SetTime, Timestamp};
    use super::*;

    fn refused<T: DeserializeOwned + std::fmt::Debug>(bytes: &[u8]) -> String {
        decode_message_pack::<T>("body", bytes).expect_err("refused").to_string()
    }

    // [WIRE-54]
    #[test]
    fn structure_that_is_no_array_is_refused() {
        let time = Timestamp { seconds: 1, nanoseconds: 2 };
        assert_eq!(decode_message_pack("time", &[0x92, 1, 2]), Ok(time));
        // An array with its count in 16 and in 32 bits; a map by names and by numbers; a binary.
        assert_eq!(decode_message_pack("time", &[0xdc, 0, 2, 1, 2]), Ok(time));
        assert_eq!(decode_message_pack("time", &[0xdd, 0, 0, 0, 2, 1, 2]), Ok(time));
        let map = [&[0x82, 0xa7][..], b"seconds", &[1, 0xab], b"nanoseconds", &[2]].concat();
        assert_eq!(refused::<Timestamp>(&map), "body does not decode: FixMap(2) in place of Timestamp");
        for bytes in [&[0x82, 0, 1, 1, 2][..], &[0xde, 0, 2, 0, 1, 1, 2], &[0xc4, 2, 1, 2], &[0xd5, 1, 1, 2]]
        {
            assert!(refused::<Timestamp>(bytes).contains("in place of Timestamp"), "{bytes:x?}");
        }
    }

    // [WIRE-54]
    #[test]
    fn value_in_the_form_of_another_type_is_refused() {
        let numbers =
            [&[0xc3][..], &[0xc0], &[0xca, 0, 0, 0, 0], &[0xcb, 0, 0, 0, 0, 0, 0, 0, 0], &[0xa1, b'5']];
        for bytes in numbers {
            assert!(refused::<u64>(bytes).contains("in place of a number"), "{bytes:x?}");
            assert!(refused::<i64>(bytes).contains("in place of a number"), "{bytes:x?}");
            assert!(refused::<SessionId>(bytes).contains("in place of a number"), "{bytes:x?}");
        }
        for bytes in [&[0xc4, 1, b'a'][..], &[0x91, b'a'], &[5], &[0xc0]] {
            assert!(refused::<String>(bytes).contains("in place of a string"), "{bytes:x?}");
        }
        for bytes in [&[0][..], &[1], &[0xc0], &[0xa4, b't', b'r', b'u', b'e']] {
            assert!(refused::<bool>(bytes).contains("in place of a bool"), "{bytes:x?}");
        }
        for bytes in [&[0xc4, 2, 1, 2][..], &[0xa2, 1, 2], &[0x82, 0, 1, 1, 2], &[0xc0]] {
            assert!(refused::<Vec<u32>>(bytes).contains("in place of an array"), "{bytes:x?}");
            assert!(refused::<[u8; 2]>(bytes).contains("in place of an array"), "{bytes:x?}");
        }
        for bytes in [&[0x92, 1, 2][..], &[0xa2, 1, 2], &[0xc0]] {
            let reason = refused::<serde_bytes::ByteBuf>(bytes);
            assert!(reason.contains("in place of a binary"), "{bytes:x?}: {reason}");
        }
        assert!(refused::<String>(&[0xa1, 0xff]).contains("not UTF-8"));
    }

    // [WIRE-54]
    #[test]
    fn enumeration_value_is_a_name_or_a_map_of_one() {
        let deny = [&[0xa4][..], b"Deny"].concat();
        assert_eq!(decode_message_pack("mode", &deny), Ok(FenceMode::Deny));
        for bytes in [&[0][..], &[0x81, 0, 0xc0], &[0xc4, 4, b'D', b'e', b'n', b'y'], &[0x91, 0], &[0xc0]] {
            refused::<FenceMode>(bytes);
        }
        assert_eq!(
            refused::<FenceMode>(&[&[0x81][..], &deny, &[0xc0]].concat()),
            "body does not decode: a map in place of a name"
        );
        assert!(
            refused::<FenceMode>(&[&[0x91][..], &deny].concat()).contains("FixArray(1) in place of a string")
        );

        let at = [0xa2, b'A', b't'];
        let time = SetTime::At(Timestamp { seconds: 1, nanoseconds: 2 });
        assert_eq!(decode_message_pack("time", &[&[0x81][..], &at, &[0x92, 1, 2]].concat()), Ok(time));
        assert!(refused::<SetTime>(&at).contains("without what it must carry"));
        assert!(
            refused::<SetTime>(&[&[0x92][..], &at, &[0x92, 1, 2]].concat()).contains("in place of a string")
        );
        let twice = [&[0x82][..], &at, &[0x92, 1, 2], &at, &[0x92, 1, 2]].concat();
        assert!(refused::<SetTime>(&twice).contains("not of one pair"));
    }

    // [WIRE-135]
    #[test]
    fn reason_repeats_what_the_peer_wrote_escaped_and_cut() {
        let reason = |name: &str| {
            let bytes = encode_message_pack(&name);
            refused::<FenceMode>(&bytes)
        };
        let forged = reason("x\n2026-01-01 ERROR forged\u{1b}[31m\u{202e}");
        assert!(forged.contains("`x\\n2026-01-01 ERROR forged\\u{1b}[31m\\u{202e}`"), "{forged}");
        let head = "body does not decode: unknown variant `";
        let room = 160 - (head.len() - "body does not decode: ".len());
        for len in [room - 1, room, room + 1, 100_000] {
            let said = reason(&"q".repeat(len));
            assert_eq!(said.matches('q').count(), len.min(room), "{len}");
            assert_eq!(said.chars().count(), head.len() + room, "{len}");
        }
    }

    // [WIRE-53] [WIRE-44]
    #[test]
    fn any_integer_form_is_taken_up_to_its_type() {
        let forms =
            [&[5][..], &[0xcc, 5], &[0xcd, 0, 5], &[0xce, 0, 0, 0, 5], &[0xcf, 0, 0, 0, 0, 0, 0, 0, 5]];
        let signed = [&[0xd0, 5][..], &[0xd1, 0, 5], &[0xd2, 0, 0, 0, 5], &[0xd3, 0, 0, 0, 0, 0, 0, 0, 5]];
        for form in forms.into_iter().chain(signed) {
            assert_eq!(decode_message_pack::<u16>("number", form), Ok(5), "{form:x?}");
            assert_eq!(decode_message_pack::<i64>("number", form), Ok(5), "{form:x?}");
        }
        assert_eq!(decode_message_pack::<i64>("number", &[0xd1, 0xff, 0xfe]), Ok(-2));
        assert_eq!(decode_message_pack::<String>("name", &[0xdb, 0, 0, 0, 1, b'a']), Ok("a".into()));
        for form in [&[0xce, 0, 1, 0, 0][..], &[0xff], &[0xd0, 0x80]] {
            refused::<u16>(form);
        }
        refused::<i64>(&[0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn nothing_cut_is_taken_and_no_count_is_believed() {
        let body = SetAttributes { mode: Some(0o644), atime: Some(SetTime::Now), ..SetAttributes::default() };
        let bytes = encode_message_pack(&body);
        assert_eq!(decode_message_pack("attributes", &bytes), Ok(body));
        for len in 0..bytes.len() {
            assert!(refused::<SetAttributes>(&bytes[..len]).contains("ends too early"), "{len} bytes");
        }
        // 2³²−1 elements or bytes, which are not there.
        assert!(refused::<Vec<[u64; 2]>>(&[0xdd, 0xff, 0xff, 0xff, 0xff]).contains("ends too early"));
        assert!(refused::<String>(&[0xdb, 0xff, 0xff, 0xff, 0xff]).contains("ends too early"));
        assert!(refused::<serde_bytes::ByteBuf>(&[0xc6, 0xff, 0xff, 0xff, 0xff]).contains("ends too early"));
    }
}
