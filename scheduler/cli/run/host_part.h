// The work that both kinds of hosts of a run share: they start their part of the cluster, watch the run's job, leave, and record the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "actors/protocol/wire/head_messages.h"
#include "actors/session/folder/folder.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "scheduler/cli/client.h"
#include "scheduler/cli/run/child.h"
#include "scheduler/cli/run/run_host.h"

namespace shoal::scheduler::cli {

inline constexpr const char* kRankResource = "shoal_rank";  // a node has one per rank that may run there
inline constexpr const char* kJobPrefix = "run:";           // the beginning of the name of the run's job
// Variables of an elastic run, which the script's Trainer reads.
inline constexpr const char* kRunWorkers = "SHOAL_RUN_WORKERS";  // MIN:MAX, the workers that an unspecified ScalingConfig has
inline constexpr const char* kRunCpus = "SHOAL_RUN_CPUS";        // with --nproc: the CPUs of all hosts that the run may have
inline constexpr auto kTick = std::chrono::milliseconds(100);
inline constexpr auto kStatusInterval = std::chrono::seconds(15);  // a host that waits prints why at this interval

// The text in the field `key` of a command's report; "" if there is none.
std::string field(const nlohmann::json& said, const char* key);

// The number of the node's host.
std::optional<std::uint32_t> number_of(const actors::NodeRow& node);

class HostPart {
 public:
  explicit HostPart(const RunHost& host) : host_(host), common_(host.common), options_(host.options), allocation_(host.allocation) {}

 protected:
  runtime::TimePoint after(double seconds) const;
  std::vector<std::string> start_words() const;

  // The hosts have a secret of their own, and need no file to meet.
  bool has_secret() const { return !common_.target.token.empty() || !common_.target.token_file.empty(); }
  Result<std::string> secret() const;
  std::uint16_t port() const;
  std::vector<std::string> without_secret() const;
  std::vector<std::string> with_secret() const;

  // Adds --host or --interface with the address at which the other hosts reach this one. It is --interface if this host's name does not
  // resolve to such an address: gloo would take the name's address.
  void add_address(std::vector<std::string>& words, const std::string& address) const;

  // Starts this host's part, and connects to the head.
  Result<void> begin(std::vector<std::string> words, std::vector<std::string> env);

  // Ends what this host has started.
  void end();
  // As end(), and then begin() may be called again.
  void abandon();

  // False: this host had a session of the cluster before the run, which goes on after it.
  bool owns_session() const { return !said_.contains("new_session") || said_["new_session"] == true; }

  // The ranks' part of the grace: the rest is for those that do not end by themselves, and for the cluster.
  double ranks_grace_s() const;
  // Serves the connection to the head for a moment, or until a signal ends this host.
  void tick();

  // The living nodes, each by the number of its host. Two that join at once may have the same number.
  using Nodes = std::multimap<std::uint32_t, actors::NodeRow>;
  Result<Nodes> nodes();
  // The run's job; nullopt until it is submitted.
  Result<std::optional<actors::JobRow>> job() { return job_of(*head_); }
  static Result<std::optional<actors::JobRow>> job_of(Client& head);
  // The node's ranks have `seconds` to save and end.
  Result<void> drain(const actors::NodeRow& node, double seconds);
  void record(ExitRecord record);

  // The run fails on this host for a reason of its own.
  int fail_with(const Error& error, int code, bool retryable);
  ExitRecord record_of(const actors::JobRow& row, int code) const;

  const RunHost& host_;
  const Common& common_;
  const RunOptions& options_;
  const Allocation& allocation_;
  std::uint32_t number_ = allocation_.node_rank;  // the number of this host in the run
  bool is_member_ = !allocation_.joins;           // a host that joins writes no exit record until it has a number (number_to_join)
  runtime::Loop loop_;
  const std::unique_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
  std::string run_;               // Meeting::run, while a further host has a part in it; "" on the first host
  std::optional<Child> cluster_;  // the command `shoal start --block`, which runs this host's part of the cluster
  nlohmann::json said_;
  std::optional<runtime::TimePoint> leave_by_;  // when this host has to have ended, after a signal that asks it to leave
  std::optional<actors::SessionFolder> session_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Client> head_;
};

}  // namespace shoal::scheduler::cli
