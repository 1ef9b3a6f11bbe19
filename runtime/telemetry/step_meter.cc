#include "runtime/telemetry/step_meter.h"

#include <algorithm>

namespace shoal::runtime {

namespace {

bool is_pass(Activity a) { return a == Activity::kForward || a == Activity::kBackward; }

}  // namespace

int StepMeter::unit() const {
  if (waits_ > 0 && wait_unit_ >= 0) return wait_unit_;
  return open_.empty() || !is_pass(open_.back().activity) ? -1 : open_.back().key;
}

bool StepMeter::in_optimizer() const {
  return std::any_of(open_.begin(), open_.end(), [](const Open& o) { return o.activity == Activity::kOptimizer; });
}

void StepMeter::count(Nanos now) {
  sums_[static_cast<std::size_t>(activity())] += now - last_;
  last_ = now;
}

void StepMeter::record(Activity activity, int unit, Nanos begin, Nanos end) {
  if (!detailed_ || spans_.size() >= kMostSpans) return;
  begin = std::max(begin, begin_);                         // a wait may have begun in the step before
  spans_.push_back({activity, unit, begin, end - begin});  // in ns of the clock, until finish()
}

void StepMeter::begin(Activity activity, int key, Nanos now) {
  count(now);
  if (activity == Activity::kOptimizer) {
    // If this optimizer's step is still open, an exception has left it.
    const auto left = std::find_if(open_.begin(), open_.end(), [&](const Open& o) { return o.activity == activity && o.key == key; });
    open_.erase(left, open_.end());
    const bool again = std::find(stepped_.begin(), stepped_.end(), key) != stepped_.end();
    if (ended_ && again && !batches_) complete_ = true;
    if (ended_ && !complete_) ended_.reset();
  } else if (ended_ && !batches_ && !in_optimizer()) {
    complete_ = true;
  }
  if (open_.size() < kMostOpen) open_.push_back({activity, key, now});
}

void StepMeter::end(Activity activity, int key, Nanos now) {
  const auto at = std::find_if(open_.rbegin(), open_.rend(), [&](const Open& o) { return o.activity == activity && o.key == key; });
  if (at == open_.rend()) return;
  count(now);
  for (const auto first = static_cast<std::size_t>(open_.rend() - at) - 1; open_.size() > first; open_.pop_back()) {
    const auto& o = open_.back();
    record(o.activity, is_pass(o.activity) ? o.key : -1, o.begin, now);
  }
}

void StepMeter::end_optimizer(int key, Nanos now, std::optional<Nanos> cpu) {
  end(Activity::kOptimizer, key, now);
  count(now);
  if (std::find(stepped_.begin(), stepped_.end(), key) == stepped_.end()) stepped_.push_back(key);
  ended_ = Ended{now, cpu, sums_, spans_.size()};
  complete_ = false;
}

void StepMeter::begin_batch(Nanos now) {
  unwind(now);
  batches_ = true;
  complete_ = ended_.has_value();
}

void StepMeter::unwind(Nanos now) {
  count(now);
  open_.clear();
}

void StepMeter::wait_begin(Activity wait, int unit, Nanos now) {
  if (waits_ > 0) {
    ++waits_;
    return;
  }
  count(now);
  waits_ = 1;
  wait_ = wait;
  wait_unit_ = unit;
  wait_begin_ = now;
}

void StepMeter::wait_end(Nanos now) {
  if (waits_ == 0) return;
  if (waits_ > 1) {
    --waits_;
    return;
  }
  count(now);
  waits_ = 0;
  record(wait_, wait_unit_, wait_begin_, now);
}

std::optional<StepMeter::Step> StepMeter::take() { return complete_ ? std::optional(finish()) : std::nullopt; }

std::optional<StepMeter::Step> StepMeter::take_idle(bool last) {
  return ended_ && (last || (open_.empty() && waits_ == 0)) ? std::optional(finish()) : std::nullopt;
}

StepMeter::Step StepMeter::finish() {
  constexpr Nanos kMicro = 1000;
  Step out;
  out.begin = begin_, out.end = ended_->end;
  out.row.total_us = (ended_->end - begin_) / kMicro;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    out.row.at[i] = ended_->sums[i] / kMicro;
    sums_[i] -= ended_->sums[i];
  }
  out.row.longest_us = out.row.total_us;
  if (cpu_ && ended_->cpu) out.row.cpu_us = (*ended_->cpu - *cpu_) / kMicro;
  const auto last = spans_.begin() + static_cast<std::ptrdiff_t>(ended_->spans);
  for (auto s = spans_.begin(); s != last; ++s)
    out.spans.push_back({s->activity, s->unit, (s->from_us - begin_) / kMicro, s->length_us / kMicro});
  spans_.erase(spans_.begin(), last);
  begin_ = ended_->end, cpu_ = ended_->cpu;
  ended_.reset();
  stepped_.clear();
  complete_ = false;
  return out;
}

}  // namespace shoal::runtime
