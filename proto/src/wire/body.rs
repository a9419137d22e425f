//! Bodies of fixed layout: the fields of a type are its bytes, in their order.

use super::{Reader, WireError, Writer};

/// What stands in a body: how it is written, and how it is read and checked.
pub(super) trait Field: Sized {
    /// Bytes that it takes.
    const SIZE: usize;

    fn write(&self, writer: &mut Writer<'_>);

    /// `what` names it where it cannot be.
    fn read(reader: &mut Reader<'_>, what: &'static str) -> Result<Self, WireError>;
}

macro_rules! numbers {
    ($($number:ident)*) => {$(
        impl Field for $number {
            const SIZE: usize = size_of::<Self>();

            #[inline]
            fn write(&self, writer: &mut Writer<'_>) {
                writer.$number(*self);
            }

            #[inline]
            fn read(reader: &mut Reader<'_>, what: &'static str) -> Result<Self, WireError> {
                reader.$number(what)
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 }

/// 32 bits.
impl Field for bool {
    const SIZE: usize = 4;

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(u32::from(*self));
    }

    #[inline]
    fn read(reader: &mut Reader<'_>, what: &'static str) -> Result<Self, WireError> {
        match reader.u32(what)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(WireError::Invalid { what, value: u64::from(value) }),
        }
    }
}

impl<T: Field, const N: usize> Field for [T; N]
where
    Self: Default,
{
    const SIZE: usize = N * T::SIZE;

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) {
        for part in self {
            part.write(writer);
        }
    }

    #[inline]
    fn read(reader: &mut Reader<'_>, what: &'static str) -> Result<Self, WireError> {
        let mut parts = Self::default();
        for part in &mut parts {
            *part = T::read(reader, what)?;
        }
        Ok(parts)
    }
}

/// What travels as a number, of which not every one has a meaning.
macro_rules! field_by_number {
    ($type:ty, $number:ty, $value:expr, $from_value:expr) => {
        impl $crate::wire::body::Field for $type {
            const SIZE: usize = size_of::<$number>();

            #[inline]
            fn write(&self, writer: &mut $crate::wire::Writer<'_>) {
                let value: fn(Self) -> $number = $value;
                $crate::wire::body::Field::write(&value(*self), writer);
            }

            #[inline]
            fn read(
                reader: &mut $crate::wire::Reader<'_>,
                what: &'static str,
            ) -> Result<Self, $crate::wire::WireError> {
                let number = <$number as $crate::wire::body::Field>::read(reader, what)?;
                let from_value: fn($number) -> Option<Self> = $from_value;
                from_value(number).ok_or($crate::wire::WireError::Invalid { what, value: u64::from(number) })
            }
        }
    };
}

/// The type of a body, with `encode`, `bytes` and `decode`. A field has a name for errors, and perhaps reserved bytes behind it: zeros.
/// What the fields cannot be together is for `check` to say.
macro_rules! body {
    (
        $(#[$meta:meta])*
        pub struct $body:ident($body_name:literal) {
            $(
                $(#[$field_meta:meta])*
                pub $field:ident: $type:ty = $name:literal $(and $reserved:literal reserved)?,
            )*
        }
        $(check $check:expr)?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $body {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $body {
            /// Bytes of the head.
            pub const HEAD_SIZE: usize = $crate::wire::HEADER_SIZE
                $(+ <$type as $crate::wire::body::Field>::SIZE $(+ $reserved)?)*;

            /// Writes the body.
            #[inline]
            pub fn encode(&self, body: &mut [u8]) {
                let mut writer = $crate::wire::Writer::new(body);
                $(
                    $crate::wire::body::Field::write(&self.$field, &mut writer);
                    $(writer.reserved($reserved);)?
                )*
            }

            /// The body, as it travels.
            #[inline]
            pub fn bytes(&self) -> [u8; Self::HEAD_SIZE - $crate::wire::HEADER_SIZE] {
                let mut body = [0; Self::HEAD_SIZE - $crate::wire::HEADER_SIZE];
                self.encode(&mut body);
                body
            }

            /// Reads the body.
            #[inline]
            pub fn decode(body: &[u8]) -> Result<Self, $crate::wire::WireError> {
                let mut reader = $crate::wire::Reader::new(body);
                $(
                    let $field = <$type as $crate::wire::body::Field>::read(&mut reader, $name)?;
                    $(reader.reserved(concat!("reserved bytes of a ", $body_name), $reserved)?;)?
                )*
                reader.finish($body_name)?;
                let body = Self { $($field),* };
                $(
                    let check: fn(&Self) -> Result<(), $crate::wire::WireError> = $check;
                    check(&body)?;
                )?
                Ok(body)
            }
        }
    };
}

pub(super) use {body, field_by_number};
