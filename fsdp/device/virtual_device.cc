#include "fsdp/device/virtual_device.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "runtime/core/check.h"

namespace shoal::fsdp {

namespace {

// The link numbers of copies between host and device, far above those of communicators, which begin at 0.
constexpr int kToDevice = 1000, kToHost = 1001;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-12;

}  // namespace

const char* to_string(VirtualDevice::Stream stream) {
  constexpr std::array kNames = {"program", "pack", "gather", "reduce", "replicas", "copies"};
  return kNames[static_cast<std::size_t>(stream)];
}

double Communicator::gather_seconds(double bytes) const { return latency + bytes * (ranks - 1) / ranks / bus_bandwidth; }

// ---- streams -----------------------------------------------------------------------------------------------------------------------

VirtualDevice::Mark VirtualDevice::run(Operation operation) {
  now_ += operation.label.empty() ? costs_.record : costs_.launch;
  operation.issued = now_;
  const Mark number = static_cast<Mark>(operations_.size());
  queues_[at(operation.stream)].push_back(number);
  last_[at(operation.stream)] = number;
  if (operation.communicator >= 0) {
    if (communicators_.size() <= at(operation.communicator)) communicators_.resize(at(operation.communicator) + 1);
    communicators_[at(operation.communicator)].push_back(number);
  }
  operations_.push_back(std::move(operation));
  return number;
}

VirtualDevice::Mark VirtualDevice::move(Stream stream, const std::string& label, double bytes) {
  return run({.stream = stream, .label = label, .seconds = bytes / costs_.memory});
}

VirtualDevice::Mark VirtualDevice::collective(Stream stream, const std::string& label, int number, const Communicator& communicator,
                                              double seconds) {
  return run({.stream = stream, .label = label, .seconds = seconds, .link = communicator.link, .communicator = number});
}

VirtualDevice::Mark VirtualDevice::copy_to_device(Stream stream, const std::string& label, double bytes) {
  return run({.stream = stream, .label = label, .seconds = bytes / costs_.to_device, .link = kToDevice});
}

VirtualDevice::Mark VirtualDevice::copy_to_host(Stream stream, const std::string& label, double bytes) {
  return run({.stream = stream, .label = label, .seconds = bytes / costs_.to_host, .link = kToHost});
}

VirtualDevice::Mark VirtualDevice::mark(Stream stream) {
  now_ += costs_.record;
  return last_[at(stream)];
}

void VirtualDevice::wait(Stream stream, Mark mark) { run({.stream = stream, .after = mark}); }

bool VirtualDevice::can_start(const Operation& operation) const {
  const Mark number = static_cast<Mark>(&operation - operations_.data());
  if (operation.communicator >= 0 && communicators_[at(operation.communicator)].front() != number) return false;
  return has_ended(operation.after);
}

void VirtualDevice::pass_until_ended(Mark mark) {
  const auto shares = [this](int link) {
    if (link < 0) return 1.0;
    return static_cast<double>(
        std::count_if(running_.begin(), running_.end(), [&](const auto& r) { return operations_[at(r.first)].link == link; }));
  };
  for (;;) {
    if (mark != kBegin && has_ended(mark)) return;
    double next = kNever;
    bool any = false;
    for (const auto& queue : queues_) {
      if (queue.empty()) continue;
      any = true;
      Operation& head = operations_[at(queue.front())];
      if (head.start >= 0 || !can_start(head)) continue;
      if (head.issued > device_now_) {
        next = std::min(next, head.issued);
        continue;
      }
      head.start = device_now_;
      running_.emplace_back(queue.front(), head.seconds);
    }
    if (!any) return;
    for (const auto& [number, left] : running_) next = std::min(next, device_now_ + left * shares(operations_[at(number)].link));
    SHOAL_CHECK(next < kNever, "operations of a virtual device wait for each other");
    for (auto& [number, left] : running_) left -= (next - device_now_) / shares(operations_[at(number)].link);
    device_now_ = next;
    std::erase_if(running_, [this](const auto& r) {
      if (r.second > kRounding) return false;
      Operation& ended = operations_[at(r.first)];
      ended.end = device_now_;
      queues_[at(ended.stream)].pop_front();
      if (ended.communicator >= 0) communicators_[at(ended.communicator)].pop_front();
      return true;
    });
  }
}

double VirtualDevice::end_of(Mark mark) {
  if (mark == kBegin) return 0;
  pass_until_ended(mark);
  return operations_[at(mark)].end;
}

void VirtualDevice::synchronize(Mark mark) { now_ = std::max(now_ + costs_.record, end_of(mark)); }

void VirtualDevice::synchronize() {
  now_ += costs_.record;
  for (const Mark last : last_) now_ = std::max(now_, end_of(last));
}

std::string VirtualDevice::timeline(double since) const {
  std::vector<const Operation*> shown;
  for (const Operation& o : operations_) {
    if (!o.label.empty() && o.end >= 0 && o.start >= since) shown.push_back(&o);
  }
  std::stable_sort(shown.begin(), shown.end(), [](const Operation* a, const Operation* b) { return a->start < b->start; });
  std::string out;
  for (const Operation* o : shown) {
    out += fmt::format("{:10.3f} ms {:9.3f} ms  {:8}  {}\n", (o->start - since) * 1e3, (o->end - o->start) * 1e3, to_string(o->stream),
                       o->label);
  }
  return out;
}

// ---- memory ------------------------------------------------------------------------------------------------------------------------

VirtualDevice::Memory VirtualDevice::allocate(Stream pool, Kind kind, double bytes) {
  allocated_ += bytes;
  by_kind_[at(kind)] += bytes;
  pools_[at(pool)] += bytes;
  pool_peaks_[at(pool)] = std::max(pool_peaks_[at(pool)], pools_[at(pool)]);
  if (allocated_ > peak_) {
    peak_ = allocated_;
    by_kind_at_peak_ = by_kind_;
  }
  return {pool, kind, bytes};
}

void VirtualDevice::free(Memory& memory) {
  allocated_ -= memory.bytes;
  by_kind_[at(memory.kind)] -= memory.bytes;
  pools_[at(memory.pool)] -= memory.bytes;
  memory.bytes = 0;
}

double VirtualDevice::reserved() const {
  double sum = 0;
  for (const double pool : pool_peaks_) sum += pool;
  return sum;
}

void VirtualDevice::forget_peak() {
  peak_ = allocated_;
  by_kind_at_peak_ = by_kind_;
  pool_peaks_ = pools_;
}

}  // namespace shoal::fsdp
