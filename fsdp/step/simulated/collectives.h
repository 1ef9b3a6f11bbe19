// The collectives of one simulated rank that have not ended: gathers of parameters, and reductions over shards and replicas.
// A collective ends once every rank has issued it, and all ranks have to issue theirs in one order.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/step/action.h"

namespace shoal::fsdp {

class SimulatedCollectives {
 public:
  using Place = std::pair<int, int>;  // unit and group
  enum class Kind : std::uint8_t { kGather, kReduceShards, kReduceReplicas };
  struct Issue {
    Kind kind;
    Place place;
    bool operator==(const Issue&) const = default;
  };

  // Each returns a broken rule, or "". `version`: the rank's present one.
  std::string begin_gather(Place place, std::uint64_t version);
  std::string drop_gather(Place place);
  std::string show(Place place, std::uint64_t version);
  void hide(Place place) { shown_.erase(place); }
  // The group's parameters are whole, and of this version.
  bool is_shown(Place place, std::uint64_t version) const;
  std::string begin_reduce(Place place, bool to_replicas, std::size_t inputs);
  std::string reduce_replicas(Place place);
  std::string finish_reduce(Place place);
  std::string end_pass() const;
  void forget_reductions() { reducing_.clear(); }
  void start_over() { *this = {}; }

  // How many collectives every rank has to have issued before this action can end; 0: it waits for none.
  std::size_t needed(const Action& action) const;
  const std::vector<Issue>& issued() const { return issued_; }
  // The first of this rank's collectives that differs from the other rank's, as text; "" if there is none.
  std::string differs(const SimulatedCollectives& other) const;
  std::size_t gathers_under_way() const { return gathering_.size(); }

 private:
  struct Gathering {
    std::size_t number;  // in issued_, from 1
    std::uint64_t version;
  };
  struct Reducing {
    Place place;
    std::size_t number;
    bool to_replicas;             // true: a reduction among replicas follows the one among shards
    bool among_replicas = false;  // true: the one among replicas has begun
  };

  std::size_t issue(Kind kind, Place place);

  std::vector<Issue> issued_;
  std::map<Place, Gathering> gathering_;
  std::map<Place, std::uint64_t> shown_;  // with their version
  std::deque<Reducing> reducing_;
};

}  // namespace shoal::fsdp
