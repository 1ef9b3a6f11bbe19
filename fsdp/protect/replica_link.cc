#include "fsdp/protect/replica_link.h"

#include <fmt/format.h>

#include <chrono>

namespace shoal::fsdp {

namespace {

using Channel = runtime::MessageLayer::Channel;
using namespace std::chrono_literals;

constexpr StreamChannels kChannels{Channel::kMessages, Channel::kData};
constexpr Channel kAnswers = Channel::kResults;
constexpr std::uint64_t kNoMore = ~std::uint64_t{0};  // the value of got_ after an error
constexpr auto kMaxSleep = 1s;                        // longest sleep of the thread while no message comes

ReplicaAnswer refusal(const Replica& of) { return {ReplicaAnswer::Kind::kRefused, 0, of.number(), 0, 0}; }

}  // namespace

ReplicaLink::Held::Held(ReplicaLink& link, Ward ward)
    : rank(ward.rank),
      memory(std::move(ward.memory)),
      replica(memory.span(), ward.spec),
      receiver(*link.options_.layer, rank, kChannels, replica_header_bytes(ward.spec.arrays.size()),
               {[this, &link](std::span<const std::byte> header) -> std::optional<std::vector<std::span<std::byte>>> {
                  if (auto pieces = replica.expect(header)) return *std::move(pieces);
                  link.answer(rank, refusal(replica));
                  return std::nullopt;
                },
                [this, &link] {
                  if (const auto taken = replica.take()) {
                    link.answer(rank, *taken);
                  } else {
                    link.answer(rank, refusal(replica));
                  }
                }}) {}

ReplicaLink::ReplicaLink(StepRecord record, Memories arenas, Options options)
    : options_(std::move(options)), source_(record, std::move(arenas)) {
  if (options_.buddy >= 0) sender_.emplace(*options_.layer, options_.buddy, kChannels);
  for (auto& ward : options_.wards) {
    costs_.memory_bytes += ward.memory.size();
    held_.push_back(std::make_unique<Held>(*this, std::move(ward)));
  }
  options_.wards.clear();
  thread_ = std::thread([this] { run(); });
}

ReplicaLink::~ReplicaLink() {
  stop();
  options_.layer.reset();  // before the members that its transfers read and write
}

void ReplicaLink::stop() {
  if (!thread_.joinable()) return;
  if (process_.forked()) {  // thread and connections are the parent's: the child must not end them
    thread_.detach();
    (void)new std::shared_ptr<runtime::MessageLayer>(std::move(options_.layer));
    return;
  }
  stopping_ = true;
  options_.layer->wake();
  thread_.join();
}

// ---- main thread -----------------------------------------------------------------------------------------------------------------------

Result<void> ReplicaLink::send(Request request) {
  if (options_.buddy < 0) return {};
  const bool again = sent_ && sent_->kind == ReplicaHeader::Kind::kStep && request.kind == sent_->kind && sent_->step == request.step;
  if (!again) {
    request.number = ++requests_;
    sent_ = request;
    const std::lock_guard lock(mutex_);
    requested_ = request;
  }
  options_.layer->wake();
  const auto began = options_.clock->now();
  const auto received = [&] { return got_.load(std::memory_order_acquire) >= sent_->number; };
  const auto waited = options_.wait(received, fmt::format("its replica of step {}", request.step), options_.buddy);
  const std::lock_guard lock(mutex_);
  if (request.kind == ReplicaHeader::Kind::kStep) costs_.waited_s += std::chrono::duration<double>(options_.clock->now() - began).count();
  if (!waited) return waited;
  return failed_ ? Result<void>(fail(*failed_)) : Result<void>();
}

void ReplicaLink::committed(std::uint64_t step) {
  committed_.store(step, std::memory_order_release);
  options_.layer->wake();
}

ReplicaLink::Costs ReplicaLink::costs() const {
  const std::lock_guard lock(mutex_);
  return costs_;
}

// ---- the link's thread -----------------------------------------------------------------------------------------------------------------

void ReplicaLink::fail_sends(Error why) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_ = std::move(why);
  }
  got_ = kNoMore;
  options_.changed();
}

bool ReplicaLink::send_requested() {
  if (!sender_) return false;
  if (sending_) {
    const bool progress = sender_->advance();
    sending_ = !sender_->idle();
    return progress;
  }
  std::optional<Request> request;
  {
    const std::lock_guard lock(mutex_);
    if (!requested_) return false;
    const bool first = !ready_ && requested_->kind == ReplicaHeader::Kind::kContents;
    const std::uint64_t before = requested_->step - (requested_->kind == ReplicaHeader::Kind::kStep ? 1 : 0);
    if (!first && !(ready_ && ready_->step == before)) return false;
    request.swap(requested_);
  }
  ReplicaSource::Outgoing out;
  const bool contents =
      request->kind == ReplicaHeader::Kind::kContents || request->with_contents || source_.rows_hash() != ready_->rows_hash;
  if (request->kind == ReplicaHeader::Kind::kContents) {
    out = source_.contents(request->number, request->step);
  } else if (auto contents_of_step = source_.step(request->number, request->step, contents)) {
    out = *std::move(contents_of_step);
  } else {
    fail_sends(contents_of_step.error());
    return true;
  }
  {
    const std::lock_guard lock(mutex_);
    if (request->kind == ReplicaHeader::Kind::kStep) {
      ++costs_.steps;
      if (!contents) costs_.step_bytes = out.bytes;
    }
    if (contents) {
      ++costs_.contents;
      costs_.contents_bytes = out.bytes;
    }
  }
  sender_->begin(std::move(out.header), std::move(out.pieces));
  sending_ = true;
  return true;
}

void ReplicaLink::receive_answer() {
  answered_ = {};
  options_.layer->receive(options_.buddy, kAnswers, std::as_writable_bytes(std::span(&arriving_, 1)), answered_);
}

bool ReplicaLink::take_answers() {
  bool progress = false;
  while (sender_ && answered_.state != Transfer::State::kPending && answered_.state != Transfer::State::kFailed) {
    progress = true;
    const ReplicaAnswer answer = arriving_;
    if (answer.kind == ReplicaAnswer::Kind::kRefused) {
      fail_sends(internal(fmt::format("rank {} cannot hold a replica: its step record differs", options_.buddy)));
    }
    if (answer.kind == ReplicaAnswer::Kind::kReady) ready_ = answer;
    if (answer.kind != ReplicaAnswer::Kind::kRefused && got_ != kNoMore) got_.store(answer.number, std::memory_order_release);
    options_.changed();
    receive_answer();
  }
  return progress;
}

void ReplicaLink::answer(int rank, const ReplicaAnswer& answer) {
  Sending& sending = answers_.emplace_back();
  sending.answer = answer;
  options_.layer->send(rank, kAnswers, std::as_bytes(std::span(&sending.answer, 1)), sending.transfer);
}

bool ReplicaLink::serve(Held& held) {
  bool progress = held.receiver.advance();
  if (held.replica.due(committed_.load(std::memory_order_acquire))) {
    answer(held.rank, held.replica.run(1));
    progress = true;
  }
  return progress;
}

bool ReplicaLink::drop_sent() {
  return answers_.remove_if([](const Sending& s) { return s.transfer.state != Transfer::State::kPending; }) > 0;
}

void ReplicaLink::run() {
  if (sender_) receive_answer();
  for (auto& held : held_) held->receiver.start();
  while (!stopping_) {
    bool progress = options_.layer->progress();
    progress |= take_answers();
    progress |= send_requested();
    for (auto& held : held_) progress |= serve(*held);
    progress |= drop_sent();
    if (!progress) options_.layer->wait(kMaxSleep);
  }
}

}  // namespace shoal::fsdp
