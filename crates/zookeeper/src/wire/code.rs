//! Why a server did not do what it was asked.

use std::fmt;

macro_rules! codes {
    ($($name:ident = $number:literal,)*) => {
        /// Why a server did not do what it was asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Code {
            $($name,)*
            /// A code that this crate does not know.
            Other(i32),
        }

        impl From<i32> for Code {
            fn from(number: i32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    other => Self::Other(other),
                }
            }
        }

        impl From<Code> for i32 {
            fn from(code: Code) -> Self {
                match code {
                    $(Code::$name => $number,)*
                    Code::Other(other) => other,
                }
            }
        }
    };
}

codes! {
    SystemError = -1,
    RuntimeInconsistency = -2,
    DataInconsistency = -3,
    ConnectionLoss = -4,
    MarshallingError = -5,
    Unimplemented = -6,
    OperationTimeout = -7,
    BadArguments = -8,
    ApiError = -100,
    NoNode = -101,
    NoAuth = -102,
    BadVersion = -103,
    NoChildrenForEphemerals = -108,
    NodeExists = -110,
    NotEmpty = -111,
    SessionExpired = -112,
    InvalidAcl = -114,
    AuthFailed = -115,
    SessionMoved = -118,
    NotReadOnly = -119,
    EphemeralOnLocalSession = -120,
    NoWatcher = -121,
    RequestTimeout = -122,
    ReconfigDisabled = -123,
    SaslRequired = -124,
    QuotaExceeded = -125,
    Throttled = -127,
}

impl Code {
    /// Whether the servers certainly did nothing. With other codes they may have, or may yet.
    pub(crate) const fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::MarshallingError
                | Self::Unimplemented
                | Self::BadArguments
                | Self::NoNode
                | Self::NoAuth
                | Self::BadVersion
                | Self::NoChildrenForEphemerals
                | Self::NodeExists
                | Self::NotEmpty
                | Self::InvalidAcl
                | Self::AuthFailed
                | Self::NotReadOnly
                | Self::EphemeralOnLocalSession
                | Self::NoWatcher
                | Self::ReconfigDisabled
                | Self::SaslRequired
                | Self::QuotaExceeded
                | Self::Throttled
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NoNode => "there is no such node",
            Self::NoAuth => "the user lacks a permission",
            Self::BadVersion => "the node has another version",
            Self::NoChildrenForEphemerals => "an ephemeral node has no children",
            Self::NodeExists => "the node is there already",
            Self::NotEmpty => "the node has children",
            Self::SessionExpired => "the session has expired",
            Self::InvalidAcl => "the access control list makes no sense",
            Self::AuthFailed => "the login was refused",
            Self::SessionMoved => "the session has moved to another server",
            Self::NotReadOnly => "the server is read-only",
            Self::Unimplemented => "the server does not know the operation",
            Self::SaslRequired => "the server wants clients to log in with SASL",
            Self::QuotaExceeded => "a quota is used up",
            Self::Throttled => "the server has too much to do",
            other => return write!(f, "ZooKeeper's error {} ({other:?})", i32::from(*other)),
        };
        f.write_str(text)
    }
}
