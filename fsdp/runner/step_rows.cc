#include "fsdp/runner/step_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "fsdp/graph/offsets.h"
#include "fsdp/graph/runnable.h"
#include "fsdp/kernels/norm.h"

namespace shoal::fsdp {

namespace {

std::size_t own_numel(const ShardedUnit& unit, std::size_t parameter) {
  return unit.own_bytes(parameter) / dtype_bytes(unit.layout().placed()[parameter].parameter.dtype);
}

Result<void> check_dtypes(const Units& units, const StepGraph& graph) {
  for (const auto& n : graph.nodes()) {
    if (n.op != Op::kOptimizerUpdate && n.op != Op::kClipNorm) continue;
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (n.unit >= 0 && static_cast<std::size_t>(n.unit) != u) continue;
      for (const auto& p : units[u]->layout().placed()) {
        if (p.parameter.dtype == DType::kFloat32 || !p.parameter.requires_grad) continue;
        return fail(unimplemented(fmt::format("{} (node {}): parameter {} is {}, and {}", graph.label(n), n.id, p.parameter.name,
                                              dtype_name(p.parameter.dtype),
                                              n.op == Op::kClipNorm ? "norms are taken of float32" : "AdamW updates float32"))
                        .with_reason("BadGraph"));
      }
    }
  }
  return {};
}

}  // namespace

RowsPlan plan_rows(const StepGraph& graph, const std::vector<std::size_t>& own_numel) {
  const std::size_t num_units = own_numel.size();
  std::vector<Buffer> buffers(2 * num_units);
  std::vector<bool> seen(2 * num_units);
  RowsPlan out;
  out.offloaded.resize(num_units);
  const auto begin = [&](std::size_t buffer, std::size_t bytes, std::int32_t node) {
    if (seen[buffer]) return;
    seen[buffer] = true;
    buffers[buffer] = {bytes, node, -1};
  };
  for (const auto& n : graph.nodes()) {
    for (std::size_t u = 0; u < num_units; ++u) {
      if (!is_for(n, static_cast<std::int32_t>(u))) continue;
      if (n.op == Op::kReduceScatter) begin(u, own_numel[u] * sizeof(float), n.id);
      if (n.op == Op::kOptimizerUpdate) buffers[u].last = n.id;
      if (n.op == Op::kFetch) begin(num_units + u, 2 * own_numel[u] * sizeof(float), n.id), out.offloaded[u] = true;
      if (n.op == Op::kOffload) buffers[num_units + u].last = n.id;
    }
  }
  const Offsets offsets = place(graph, buffers);
  out.gradient.assign(offsets.by_buffer.begin(), offsets.by_buffer.begin() + static_cast<std::ptrdiff_t>(num_units));
  out.moments.assign(offsets.by_buffer.begin() + static_cast<std::ptrdiff_t>(num_units), offsets.by_buffer.end());
  out.bytes = offsets.bytes;
  return out;
}

Result<StepRows> StepRows::make(const Units& units, const StepGraph& graph, const std::string& offload_folder) {
  SHOAL_OK(check_dtypes(units, graph));
  StepRows out(units);
  std::vector<std::size_t> numel(units.size());
  std::vector<bool> updated(units.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t i = 0; i < units[u]->layout().placed().size(); ++i) numel[u] += own_numel(*units[u], i);
    updated[u] = has(graph, Op::kOptimizerUpdate, static_cast<std::int32_t>(u), 0);
  }
  const RowsPlan plan = plan_rows(graph, numel);
  out.block_.resize(plan.bytes);
  out.units_.resize(units.size());
  std::size_t file_bytes = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    Unit& unit = out.units_[u];
    auto* gradient = reinterpret_cast<float*>(out.block_.data() + plan.gradient[u]);
    float* moments = nullptr;
    if (plan.offloaded[u]) {
      unit.fetched = {out.block_.data() + plan.moments[u], 2 * numel[u] * sizeof(float)};
      unit.file_offset = file_bytes;
      file_bytes += unit.fetched.size();
      moments = reinterpret_cast<float*>(unit.fetched.data());
    } else if (updated[u]) {
      unit.moments.resize(2 * numel[u]);
      out.moments_bytes_ += unit.moments.size() * sizeof(float);
      moments = unit.moments.data();
    }
    for (std::size_t i = 0; i < units[u]->layout().placed().size(); ++i) {
      Rows rows;
      rows.numel = own_numel(*units[u], i);
      rows.gradient = gradient;
      rows.m = moments;
      rows.v = moments == nullptr ? nullptr : moments + rows.numel;
      gradient += rows.numel;
      if (moments != nullptr) moments += 2 * rows.numel;
      unit.rows.push_back(rows);
    }
  }
  if (file_bytes > 0 || std::find(plan.offloaded.begin(), plan.offloaded.end(), true) != plan.offloaded.end()) {
    if (offload_folder.empty())
      return fail(invalid_argument("this step offloads optimizer state, but no folder for it was given").with_hint("offload_folder=..."));
    SHOAL_TRY(out.file_, StateFile::make(offload_folder, file_bytes));
  }
  return out;
}

StepRows::Memory StepRows::memory(const std::vector<const Layout*>& units, Grid grid, const StepGraph& graph) {
  Memory out;
  for (int rank = 0; rank < grid.world_size; ++rank) {
    std::vector<std::size_t> numel(units.size());
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (const auto& p : units[u]->placed()) numel[u] += piece_of(p, grid.shards(), grid.shard_of(rank)).numel();
    }
    const RowsPlan plan = plan_rows(graph, numel);
    out.blocks += plan.bytes;
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (!plan.offloaded[u] && has(graph, Op::kOptimizerUpdate, static_cast<std::int32_t>(u), 0))
        out.moments += 2 * numel[u] * sizeof(float);
    }
  }
  return out;
}

void StepRows::begin_step() {
  for (auto& unit : units_) {
    for (auto& rows : unit.rows) rows.present = false;
  }
}

std::vector<Reducer::Gradient> StepRows::to_reduce(std::size_t unit, const std::vector<const std::byte*>& whole) const {
  const auto& placed = sharded_[unit]->layout().placed();
  std::vector<Reducer::Gradient> out(whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const Rows& rows = units_[unit].rows[i];
    out[i] = {whole[i], rows.numel == 0 ? nullptr : reinterpret_cast<std::byte*>(rows.gradient), rows.present, placed[i].compute_dtype()};
  }
  return out;
}

void StepRows::reduced(const Reducer::Reduced& reduced) {
  for (std::size_t i = 0; i < reduced.present.size(); ++i) {
    Rows& rows = units_[reduced.unit].rows[i];
    rows.present = rows.present || reduced.present[i];
  }
}

double StepRows::squares() const {
  double out = 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (sharded_[u]->grid().replica_of(sharded_[u]->rank()) != 0) continue;  // counted once: every replica has the same sums
    for (const auto& rows : units_[u].rows) {
      if (!rows.present) continue;
      out += power_sum(DType::kFloat32, reinterpret_cast<const std::byte*>(rows.gradient), rows.numel, 2, 1);
    }
  }
  return out;
}

void StepRows::scale(float factor) {
  for (auto& unit : units_) {
    for (auto& rows : unit.rows) {
      if (!rows.present) continue;
      for (std::size_t i = 0; i < rows.numel; ++i) rows.gradient[i] *= factor;
    }
  }
}

void StepRows::update(std::size_t unit, const Adam& options) {
  for (std::size_t i = 0; i < units_[unit].rows.size(); ++i) {
    Rows& r = units_[unit].rows[i];
    if (!r.present) continue;
    ++r.updates;
    if (r.numel > 0) adam(options, r.updates, reinterpret_cast<float*>(sharded_[unit]->own(i)), r.gradient, r.m, r.v, r.numel);
  }
}

Result<void> StepRows::fetch(std::size_t unit) { return file_->read(units_[unit].file_offset, units_[unit].fetched); }

Result<void> StepRows::offload(std::size_t unit) { return file_->write(units_[unit].file_offset, units_[unit].fetched); }

}  // namespace shoal::fsdp
