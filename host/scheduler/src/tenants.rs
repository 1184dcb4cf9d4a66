//! Numbers for tenant names.

use std::collections::HashMap;
use std::sync::Arc;

use contract::generation::Tenant;
use contract::policy::TenantInfo;

use crate::limits::TENANTS_MAX;

struct Known {
    info: TenantInfo,
    live: u32,
}

#[derive(Default)]
pub(crate) struct Tenants {
    by_name: HashMap<Arc<str>, Known>,
    /// New or changed since the last delta.
    news: Vec<TenantInfo>,
    next_id: u32,
}

impl Tenants {
    /// Counts a live request of the tenant; answers the tenant's number.
    pub fn enter(&mut self, tenant: &Tenant) -> u32 {
        // A weight that cannot be used in arithmetic is as good as none.
        let weight = if tenant.weight.is_finite() && tenant.weight > 0.0 { tenant.weight } else { 1.0 };
        if !self.by_name.contains_key(&tenant.name) && self.by_name.len() >= TENANTS_MAX {
            self.by_name.retain(|_, known| known.live > 0);
        }
        let known = self.by_name.entry(Arc::clone(&tenant.name)).or_insert_with(|| {
            let id = self.next_id;
            self.next_id = self.next_id.wrapping_add(1);
            // A weight that differs from every real one makes the tenant news below.
            Known { info: TenantInfo { id, name: Arc::clone(&tenant.name), weight: 0.0 }, live: 0 }
        });
        known.live += 1;
        if known.info.weight != weight {
            known.info.weight = weight;
            self.news.retain(|news| news.id != known.info.id);
            self.news.push(known.info.clone());
        }
        known.info.id
    }

    pub fn leave(&mut self, name: &str) {
        if let Some(known) = self.by_name.get_mut(name) {
            known.live = known.live.saturating_sub(1);
        }
    }

    pub fn take_news(&mut self, into: &mut Vec<TenantInfo>) {
        into.append(&mut self.news);
    }

    /// Every known tenant, by number; nothing is news after it.
    pub fn all(&mut self) -> Vec<TenantInfo> {
        self.news.clear();
        self.known()
    }

    /// Every known tenant, by number.
    pub fn known(&self) -> Vec<TenantInfo> {
        let mut all: Vec<_> = self.by_name.values().map(|known| known.info.clone()).collect();
        all.sort_by_key(|info| info.id);
        all
    }

    /// Without a policy nobody asks for news.
    pub fn forget_news(&mut self) {
        self.news.clear();
    }
}
