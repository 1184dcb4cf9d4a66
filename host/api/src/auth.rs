//! Who is asking: API keys to tenants, and the namespace of the prefix cache.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, header};
use contract::generation::Tenant;
use sha2::{Digest, Sha256};

use crate::error::{ApiError, Code, quoted};

/// Without keys, a client names its own tenant here (before the `user` field).
pub const TENANT_HEADER: HeaderName = HeaderName::from_static("x-tenant");
/// Where clients of the Anthropic API put their key; `Authorization` goes before it.
pub const KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");
/// Wanted time of the first token, in milliseconds.
pub const DEADLINE_HEADER: HeaderName = HeaderName::from_static("x-slo-ttft-ms");
/// Longest tenant name, in bytes; it becomes a metrics label and is kept by the scheduler.
pub const TENANT_BYTES_MAX: usize = 128;
/// Longest deadline accepted: one hour. A larger number is a client that counts in another unit.
pub const DEADLINE_MS_MAX: u32 = 3_600_000;

/// One row of the operator's key file.
#[derive(Clone, Debug)]
pub struct KeyRow {
    /// SHA-256 of the key, 64 hexadecimal digits. The key itself is never stored.
    pub sha256: String,
    pub tenant: String,
    /// Share of the tenant relative to others; more than 0.
    pub weight: f64,
    /// May exchange plugins.
    pub admin: bool,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KeyError {
    #[error("key {index} (tenant `{tenant}`): sha256 must be 64 hexadecimal digits, not {len} characters of something")]
    Digest { index: usize, tenant: String, len: usize },
    #[error("key {index} (tenant `{tenant}`): weight must be a finite number above 0, not {weight}")]
    Weight { index: usize, tenant: String, weight: f64 },
    #[error("key {index}: tenant must have 1 to {TENANT_BYTES_MAX} bytes, not {len}")]
    Tenant { index: usize, len: usize },
    #[error("key {index} (tenant `{tenant}`): the same sha256 stands in an earlier row")]
    Duplicate { index: usize, tenant: String },
}

/// The server's keys by digest. Empty: no key is asked for.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    by_digest: HashMap<[u8; 32], Tenant>,
    /// Digests of the keys that may exchange plugins.
    admins: HashSet<[u8; 32]>,
}

impl Keys {
    pub fn new(rows: &[KeyRow]) -> Result<Self, KeyError> {
        let mut by_digest = HashMap::with_capacity(rows.len());
        let mut admins = HashSet::new();
        for (index, row) in rows.iter().enumerate() {
            let tenant = row.tenant.clone();
            if tenant.is_empty() || tenant.len() > TENANT_BYTES_MAX {
                return Err(KeyError::Tenant { index, len: tenant.len() });
            }
            if !(row.weight.is_finite() && row.weight > 0.0) {
                return Err(KeyError::Weight { index, tenant, weight: row.weight });
            }
            let Some(digest) = parse_digest(&row.sha256) else {
                return Err(KeyError::Digest { index, tenant, len: row.sha256.len() });
            };
            let value = Tenant { name: tenant.as_str().into(), weight: row.weight };
            if row.admin {
                admins.insert(digest);
            }
            if by_digest.insert(digest, value).is_some() {
                return Err(KeyError::Duplicate { index, tenant });
            }
        }
        Ok(Self { by_digest, admins })
    }

    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }

    /// Checks the `Authorization` or `x-api-key` header. The lookup is by digest, so its time says nothing about a stored key.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let deadline = deadline(headers)?;
        if self.is_empty() {
            return Ok(Caller { keyed: None, named: named_tenant(headers)?, deadline, admin: false });
        }
        let refused = |what: &str| {
            ApiError::new(
                Code::InvalidApiKey,
                format!("{what}; send `Authorization: Bearer KEY` with a key of this server"),
            )
        };
        let key = match (headers.get(header::AUTHORIZATION), headers.get(&KEY_HEADER)) {
            (Some(value), _) => match value.as_bytes().split_at_checked(7) {
                Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => key.trim_ascii(),
                _ => return Err(refused("the Authorization header does not have the form `Bearer KEY`")),
            },
            (None, Some(value)) => value.as_bytes().trim_ascii(),
            (None, None) => return Err(refused("no API key was sent")),
        };
        let digest: [u8; 32] = Sha256::digest(key).into();
        let tenant = self.by_digest.get(&digest).ok_or_else(|| refused("the API key is not known here"))?;
        let admin = self.admins.contains(&digest);
        Ok(Caller { keyed: Some(tenant.clone()), named: None, deadline, admin })
    }
}

fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    let hex = hex.trim().as_bytes();
    if hex.len() != 64 {
        return None;
    }
    let mut digest = [0_u8; 32];
    for (byte, pair) in digest.iter_mut().zip(hex.chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(digest)
}

fn named_tenant(headers: &HeaderMap) -> Result<Option<Arc<str>>, ApiError> {
    let Some(value) = headers.get(&TENANT_HEADER) else { return Ok(None) };
    match value.to_str() {
        Ok(name) if !name.is_empty() && name.len() <= TENANT_BYTES_MAX => Ok(Some(name.into())),
        _ => Err(ApiError::invalid(
            TENANT_HEADER.as_str(),
            format!("must be 1 to {TENANT_BYTES_MAX} visible ASCII characters"),
        )),
    }
}

/// Counted from now on, before the body is read: what comes until the engine hears of it is time that the client waits too.
fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, ApiError> {
    let Some(value) = headers.get(&DEADLINE_HEADER) else { return Ok(None) };
    let text = value.to_str().unwrap_or("");
    match text.trim().parse::<u32>() {
        Ok(ms) if (1..=DEADLINE_MS_MAX).contains(&ms) => Ok(Some(Instant::now() + Duration::from_millis(ms.into()))),
        _ => Err(ApiError::invalid(
            DEADLINE_HEADER.as_str(),
            format!("must be a whole number of milliseconds from 1 to {DEADLINE_MS_MAX}, not \"{}\"", quoted(text)),
        )),
    }
}

/// The sender of one request, after the key check.
#[derive(Clone, Debug)]
pub struct Caller {
    keyed: Option<Tenant>,
    named: Option<Arc<str>>,
    /// When the first token is due.
    pub deadline: Option<Instant>,
    admin: bool,
}

impl Caller {
    /// Whether the key may exchange plugins. Nobody may on a server without keys: anybody could be anyone.
    pub fn is_admin(&self) -> bool {
        self.admin
    }

    /// The tenant that the key stands for; `None` on a server without keys, where everybody may do everything.
    pub fn keyed(&self) -> Option<&Arc<str>> {
        self.keyed.as_ref().map(|tenant| &tenant.name)
    }

    /// The key's tenant; without keys the header's, else the request's `user`, else `default`.
    pub fn tenant(&self, user: Option<&str>) -> Tenant {
        match (&self.keyed, &self.named, user) {
            (Some(tenant), _, _) => tenant.clone(),
            (None, Some(name), _) => Tenant { name: name.clone(), weight: 1.0 },
            (None, None, Some(user)) => Tenant { name: user.into(), weight: 1.0 },
            (None, None, None) => Tenant::default(),
        }
    }
}

/// The prefix cache's namespace: requests share pages only within one.
///
/// The tenant's name is part of it with its length, so no salt chosen by a client reaches another tenant's pages.
pub fn namespace(tenant: &Tenant, cache_salt: Option<&str>) -> u64 {
    let mut hash = Sha256::new();
    hash.update((tenant.name.len() as u64).to_le_bytes());
    hash.update(tenant.name.as_bytes());
    // "No salt" and an empty salt are told apart by this byte.
    hash.update([u8::from(cache_salt.is_some())]);
    hash.update(cache_salt.unwrap_or_default().as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0_u8; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b".to_owned();
        Keys::new(&[KeyRow { sha256, tenant: "acme".into(), weight: 2.0, admin: false }]).expect("a valid row")
    }

    fn headers(rows: &[(&'static str, &str)]) -> HeaderMap {
        rows.iter().map(|(k, v)| (HeaderName::from_static(k), v.parse().expect("a header value"))).collect()
    }

    #[test]
    fn key_decides_the_tenant() {
        let caller =
            keys().caller(&headers(&[("authorization", "Bearer secret"), ("x-tenant", "other")])).expect("a known key");
        assert_eq!(caller.tenant(Some("user")), Tenant { name: "acme".into(), weight: 2.0 });
        let bare = keys().caller(&headers(&[("x-api-key", "secret")])).expect("a known key");
        assert_eq!(bare.keyed().map(|name| &**name), Some("acme"));
    }

    #[test]
    fn wrong_keys_are_refused() {
        for rows in [&[][..], &[("authorization", "Bearer no")], &[("authorization", "Basic secret")]] {
            let error = keys().caller(&headers(rows)).expect_err("no valid key");
            assert_eq!(error.status(), 401);
        }
    }

    #[test]
    fn without_keys_the_header_comes_before_the_user() {
        let open = Keys::default();
        let name = |rows: &[(&'static str, &str)], user| {
            open.caller(&headers(rows)).map(|c| c.tenant(user).name.to_string()).expect("no key is asked for")
        };
        assert_eq!(name(&[("x-tenant", "t")], Some("u")), "t");
        assert_eq!(name(&[], Some("u")), "u");
        assert_eq!(name(&[], None), "default");
    }

    #[test]
    fn bad_rows_and_headers_name_the_limit() {
        let row = |sha256: &str, weight| KeyRow { sha256: sha256.into(), tenant: "t".into(), weight, admin: false };
        assert!(matches!(Keys::new(&[row("zz", 1.0)]), Err(KeyError::Digest { len: 2, .. })));
        assert!(matches!(Keys::new(&[row(&"a".repeat(64), f64::NAN)]), Err(KeyError::Weight { .. })));
        let error = Keys::default().caller(&headers(&[("x-slo-ttft-ms", "-5")])).expect_err("negative");
        assert!(error.message.contains("from 1 to 3600000, not \"-5\""), "{}", error.message);
    }

    /// A salt cannot reach the pages of another tenant, whatever characters it has.
    #[test]
    fn namespaces_do_not_meet() {
        let tenant = |name: &str| Tenant { name: name.into(), weight: 1.0 };
        let all = [
            namespace(&tenant("a"), None),
            namespace(&tenant("a"), Some("")),
            namespace(&tenant("a"), Some("b")),
            namespace(&tenant("ab"), None),
            namespace(&tenant("b"), Some("a")),
        ];
        let distinct: std::collections::HashSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
