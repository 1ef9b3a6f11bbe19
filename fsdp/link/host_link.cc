#include "fsdp/link/host_link.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

using Channel = runtime::MessageLayer::Channel;
using namespace std::chrono_literals;

constexpr auto kCheckInterval = 1s;      // interval at which a link without messages looks for lost connections
constexpr auto kLosing = 20ms;           // the interval once a connection has ended or the link ends
constexpr auto kFlush = 1s;              // how long the end of a link waits until its last messages have arrived
constexpr auto kLeaving = 60s;           // how long the end of a link waits for rows and sums under way
constexpr auto kCauseGrace = 100ms;      // after a rank's connection ends: time in which another rank of its host can report the cause
constexpr auto kDepartureGrace = 500ms;  // after a rank's connection ends: time in which its partner can report that the rank has left

}  // namespace

HostLink::HostLink(LinkModel model, std::shared_ptr<runtime::MessageLayer> layer, std::shared_ptr<runtime::Clock> clock)
    : model_(model),
      layer_(std::move(layer)),
      clock_(std::move(clock)),
      rows_(model, *layer_, [this] { notify_all(); }),
      sums_(model, *layer_, [this] { notify_all(); }),
      lost_since_(static_cast<std::size_t>(model.grid.world_size)),
      reported_(static_cast<std::size_t>(model.grid.world_size)) {
  for (int r = 0; r < model_.grid.world_size; ++r) {
    const bool reports = model_.remote(r) ? model_.hosts.partner(r, model_.host()) == model_.rank : r != model_.rank;
    if (!reports) continue;
    sources_.push_back(std::make_unique<Source>());
    sources_.back()->rank = r;
    sources_.back()->message.resize(kMaxUpdateBytes);
  }
  model_.control.rank(model_.rank).linked.store(1, std::memory_order_release);
  thread_ = std::thread([this] { run(); });
}

HostLink::~HostLink() {
  leave();
  layer_.reset();  // before the members that its transfers read and write
}

void HostLink::leave() {
  if (!thread_.joinable()) return;
  if (process_.forked()) {  // thread and connections are the parent's: the child must not end them
    thread_.detach();
    (void)new std::shared_ptr<runtime::MessageLayer>(std::move(layer_));
    return;
  }
  update();
  leaving_ = true;
  layer_->wake();
  thread_.join();
  ended_ = true;
  model_.control.rank(model_.rank).linked.store(0, std::memory_order_release);
  notify_all();
}

// ---- this rank's reports ---------------------------------------------------------------------------------------------------------------

void HostLink::post(std::vector<std::byte> message, To to) {
  if (ended_) return;
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back({std::move(message), to});
  }
  layer_->wake();
}

void HostLink::update() {
  const Words words = Words::load(model_.control.rank(model_.rank));
  if (last_words_ == words) return;
  last_words_ = words;
  post(encode(words));
}

void HostLink::published(std::uint64_t sequence, std::uint32_t unit, bool everywhere) {
  const Control::Slot& slot = model_.control.rank(model_.rank).slots[sequence % model_.slots.num_slots()];
  const std::size_t num_parameters = model_.units[unit]->layout().placed().size();
  post(encode(Publication{sequence, unit, everywhere ? 1u : 0u, slot.weight.load(), {slot.present, num_parameters}}));
  sums_.published(sequence, unit, everywhere);
  update();
  if (model_.hosts.ranks(model_.host()).size() > 1) post(encode(UpdateKind::kPublished), To::kThisHost);
}

int HostLink::missing_rows(std::size_t unit, std::uint64_t version) const {
  for (int r = 0; r < model_.grid.world_size; ++r) {
    if (!model_.remote(r) || model_.grid.replica_of(r) != model_.grid.replica_of(model_.rank)) continue;
    if (model_.control.rows(r, unit).load(std::memory_order_acquire) < version) return r;
  }
  return -1;
}

// ---- the link's thread -----------------------------------------------------------------------------------------------------------------

bool HostLink::send_posted() {
  std::deque<Posted> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  const auto send = [&](int to, const std::vector<std::byte>& message) {
    Sending& sending = sending_.emplace_back();
    sending.message = message;
    layer_->send(to, Channel::kHeaders, sending.message, sending.transfer);
  };
  for (const Posted& p : posted) {
    if (p.to == To::kThisHost) {
      for (const int r : model_.hosts.ranks(model_.host())) {
        if (r != model_.rank) send(r, p.message);
      }
    } else {
      for (int h = 0; h < model_.hosts.num_hosts(); ++h) {
        if (h != model_.host()) send(model_.hosts.partner(model_.rank, h), p.message);
      }
    }
  }
  return !posted.empty();
}

bool HostLink::drop_sent() {
  return sending_.remove_if([](const Sending& s) { return s.transfer.state != Transfer::State::kPending; }) > 0;
}

void HostLink::receive(Source& source) {
  source.transfer = {};
  layer_->receive(source.rank, Channel::kHeaders, source.message, source.transfer);
}

void HostLink::store(int rank, const Update& update) {
  auto& words = model_.control.rank(rank);
  switch (update.kind) {
    case UpdateKind::kWords:
      update.words.store(words);
      break;
    case UpdateKind::kPublication:
      if (update.publication.unit < model_.units.size() &&
          update.publication.present.size() == model_.units[update.publication.unit]->layout().placed().size()) {
        update.publication.store(words.slots[update.publication.sequence % model_.slots.num_slots()]);
      }
      break;
    case UpdateKind::kStuck:
      for (const int r : model_.hosts.ranks(model_.host())) model_.control.rank(r).stuck.store(1, std::memory_order_release);
      break;
    case UpdateKind::kGone:
      if (update.gone < static_cast<std::uint32_t>(model_.grid.world_size) && model_.hosts.same_host(static_cast<int>(update.gone), rank)) {
        model_.control.membership_page().mark_gone(update.gone, update.cause);
      }
      break;
    case UpdateKind::kPublished:
      break;  // sums_.advance() finds the publication
  }
}

bool HostLink::take_updates() {
  bool any = false;
  for (auto& source : sources_) {
    while (!source->ended && source->transfer.state != Transfer::State::kPending) {
      any = true;
      if (!source->transfer.complete()) {
        source->ended = true;
        break;
      }
      if (const auto update = decode_update(std::span(source->message).first(source->transfer.bytes))) store(source->rank, *update);
      receive(*source);
    }
  }
  if (any) notify_all();
  return any;
}

void HostLink::check_gone(bool progress) {
  auto& page = model_.control.membership_page();
  const auto has_left = [&](int r) {
    return decode_place(model_.control.rank(r).place.load(std::memory_order_acquire)).doing == Doing::kLeft;
  };
  for (int r = 0; r < model_.grid.world_size; ++r) {
    const auto member = static_cast<std::uint32_t>(r);
    if (!model_.remote(r)) {
      if (!page.is_gone(member) || reported_[member]) continue;
      reported_[member] = true;
      post(encode_gone(member, page.cause(member)));
      continue;
    }
    const int partner = model_.hosts.partner(r, model_.host());
    if (has_left(r) || has_left(partner) || page.is_gone(member)) continue;  // a partner that has left reports no more
    const auto error = layer_->lost(r);
    if (!error) continue;
    auto& since = lost_since_[member];
    if (!since) {
      since = clock_->now();
      continue;
    }
    // If this rank is the partner and finds no further message, it has all reports of rank r. It then waits only for another rank of that
    // host to report the cause.
    const bool others = model_.hosts.ranks(model_.hosts.host_of(r)).size() > 1;
    const runtime::Duration grace = partner != model_.rank ? kDepartureGrace : others ? kCauseGrace : runtime::Duration{};
    if (!progress && clock_->now() - *since >= grace) page.mark_gone(member, fmt::format("rank {} is gone: {}", r, error->message()));
  }
}

bool HostLink::idle() {
  const bool rows = !model_.models_agree() || (rows_.finished() && rows_.received());  // rows of different models are not sent
  const std::lock_guard lock(mutex_);
  return posted_.empty() && sending_.empty() && rows && sums_.finished();
}

void HostLink::run() {
  for (auto& source : sources_) receive(*source);
  rows_.start();
  sums_.start();
  std::optional<runtime::TimePoint> leave_by;
  while (true) {
    bool progress = layer_->progress();  // before send_posted(), because progress() may consume a post's wake-up
    progress |= send_posted();
    progress |= take_updates();
    progress |= rows_.advance();
    progress |= sums_.advance();
    progress |= drop_sent();
    check_gone(progress);
    if (leaving_) {
      const auto now = clock_->now();
      if (!leave_by) leave_by = now + kLeaving;
      if (idle() || now >= *leave_by) break;
    }
    const bool losing = std::ranges::any_of(lost_since_, [](const auto& since) { return since.has_value(); });
    if (!progress) layer_->wait(losing || leaving_ ? runtime::Duration(kLosing) : runtime::Duration(kCheckInterval));
  }
  layer_->flush(kFlush);
}

}  // namespace shoal::fsdp
