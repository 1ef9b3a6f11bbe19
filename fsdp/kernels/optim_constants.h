// Options and corrections of optimizers as kernels use them, each rounded to T once. Compiled by nvcc, too.
#pragma once

namespace shoal::fsdp {

template <class T>
struct AdamConstants {
  T sign, grad_scale, coupled_decay, keep, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_correction2, eps;
  bool coupled, unscale;
};

template <class T>
struct SgdConstants {
  T sign, grad_scale, decay, momentum, taken, lr;  // taken: the share of a gradient that the momentum takes, 1 - dampening
  bool decays, unscale, nesterov, first;
};

}  // namespace shoal::fsdp
