#include "runtime/telemetry/step_meter.h"

#include <algorithm>

namespace shoal::runtime {

void StepMeter::count(Nanos now) {
  sums_[static_cast<std::size_t>(activity())] += now - last_;
  last_ = now;
}

void StepMeter::record(Activity activity, int unit, Nanos begin, Nanos end) {
  if (!detailed_ || spans_.size() >= kMostSpans) return;
  // Its end decides which step it belongs to, so the begin may lie before that of the step.
  begin = std::max(begin, begin_);
  spans_.push_back({activity, unit, begin, end - begin});  // in ns of the clock, until finish()
}

void StepMeter::go(Activity activity, Nanos now) {
  if (activity == activity_) return;
  count(now);
  if (activity_ == Activity::kLoader || activity_ == Activity::kOptimizer || activity_ == Activity::kSave)
    record(activity_, -1, activity_begin_, now);
  if (ended_ && (activity == Activity::kForward || activity == Activity::kLoader || activity == Activity::kSave)) complete_ = true;
  if (ended_ && activity == Activity::kOptimizer) ended_.reset();
  activity_ = activity;
  activity_begin_ = now;
}

void StepMeter::unit_begin(Activity activity, int unit, Nanos now) {
  go(activity, now);
  open_.push_back({activity, unit, now});
  unit_ = unit;
}

void StepMeter::unit_end(Activity activity, int unit, Nanos now) {
  // A unit that did not end, because an exception has left it, ends with the one around it.
  const auto at = std::find_if(open_.rbegin(), open_.rend(), [&](const Open& o) { return o.activity == activity && o.unit == unit; });
  if (at == open_.rend()) return;
  count(now);
  record(activity, unit, at->begin, now);
  open_.erase(at.base() - 1, open_.end());
  unit_ = open_.empty() ? -1 : open_.back().unit;
}

void StepMeter::end_pass(Nanos now) {
  count(now);
  for (; !open_.empty(); open_.pop_back()) record(open_.back().activity, open_.back().unit, open_.back().begin, now);
  unit_ = -1;
  go(Activity::kElsewhere, now);
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

void StepMeter::end_step(Nanos now, Nanos cpu) {
  go(Activity::kElsewhere, now);
  ended_ = Ended{now, cpu, sums_, spans_.size()};
  complete_ = false;
}

std::optional<StepMeter::Step> StepMeter::take() { return complete_ ? finish() : std::nullopt; }

std::optional<StepMeter::Step> StepMeter::take_last() { return ended_ ? finish() : std::nullopt; }

std::optional<StepMeter::Step> StepMeter::finish() {
  constexpr Nanos kMicro = 1000;
  Step out;
  out.begin = begin_, out.end = ended_->end;
  out.row.total_us = (ended_->end - begin_) / kMicro;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    out.row.at[i] = ended_->sums[i] / kMicro;
    sums_[i] -= ended_->sums[i];
  }
  out.row.longest_us = out.row.total_us;
  out.row.cpu_us = cpu_ < 0 ? 0 : (ended_->cpu - cpu_) / kMicro;
  const auto last = spans_.begin() + static_cast<std::ptrdiff_t>(ended_->spans);
  for (auto s = spans_.begin(); s != last; ++s)
    out.spans.push_back({s->activity, s->unit, (s->from_us - begin_) / kMicro, s->length_us / kMicro});
  spans_.erase(spans_.begin(), last);
  begin_ = ended_->end, cpu_ = ended_->cpu;
  ended_.reset();
  complete_ = false;
  return out;
}

void StepMeter::unwind(Nanos now) {
  wait_end(now);
  waits_ = 0;
  open_.clear();
  unit_ = -1;
  go(Activity::kElsewhere, now);
}

}  // namespace shoal::runtime
