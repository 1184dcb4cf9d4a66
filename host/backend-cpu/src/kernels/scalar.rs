//! The fp32 forms that the kernels are tested against: plain loops, no regard for speed.

/// `sum_k w[k] x[k]` in f64.
pub fn dot(w: &[f32], x: &[f32]) -> f64 {
    w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum()
}

/// `weight x / sqrt(mean(x^2) + eps)`
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(&x, &w)| (f64::from(x) * scale * f64::from(w)) as f32).collect()
}

/// `silu(gate) up` with `silu(x) = x / (1 + e^-x)`
pub fn silu_mul(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(&g, &u)| (f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u)) as f32).collect()
}

/// `1 / (1 + e^-x)`
pub fn sigmoid(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

/// Rotates the half-split pairs `(j, j + dims / 2)` of the first `dims` elements by `position inv_freq[j]`.
pub fn rope(head: &mut [f32], inv_freq: &[f32], position: u32) {
    let half = inv_freq.len();
    for (j, &freq) in inv_freq.iter().enumerate() {
        let angle = f64::from(position) * f64::from(freq);
        let (a, b) = (f64::from(head[j]), f64::from(head[j + half]));
        head[j] = (a * angle.cos() - b * angle.sin()) as f32;
        head[j + half] = (b * angle.cos() + a * angle.sin()) as f32;
    }
}

/// `softmax(q k / sqrt(head_dim)) v` over keys and values of `q.len()` each.
pub fn attention(q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>]) -> Vec<f32> {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(|k| dot(k, q) * scale).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..q.len())
        .map(|i| (values.iter().zip(&weights).map(|(v, w)| f64::from(v[i]) * w).sum::<f64>() / total) as f32)
        .collect()
}
