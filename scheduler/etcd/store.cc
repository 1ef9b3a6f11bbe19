#include "scheduler/etcd/store.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "runtime/core/check.h"
#include "runtime/loop/side_thread.h"
#include "scheduler/etcd/compactor.h"

namespace shoal::scheduler::etcd {

using nlohmann::json;

namespace {

// Limits of a transaction. They are below etcd's (128 operations, 1.5 MB), because keys and the sequence key come on top.
constexpr std::size_t kMaxOps = 100, kMaxBytes = 1u << 20;
constexpr std::size_t kPartBytes = 256u << 10;   // largest value; longer rows have several keys
constexpr std::size_t kChunkBytes = 512u << 10;  // largest chunk of a journal, which is text
constexpr std::int64_t kPage = 100;              // keys per read
constexpr runtime::Duration kPause = std::chrono::milliseconds(50);

struct Ops {
  json list = json::array();
  std::size_t bytes = 0;
};

// Encodes a row as "NAME_BYTES STATE_BYTES ALL_BYTES ", name, state and record. The three numbers are sizes; the last is that of name,
// state and record together. The caller cuts it into parts.
std::string encode(const Record& r) {
  std::string out = fmt::format("{} {} {} ", r.name.size(), r.state.size(), r.name.size() + r.state.size() + r.bytes.size());
  out += r.name;
  out += r.state;
  out += r.bytes.view();
  return out;
}

Result<Record> decode(TableName table, std::uint64_t id, const std::string& text) {
  std::size_t sizes[3] = {};
  const char* at = text.c_str();
  for (auto& size : sizes) {
    char* end = nullptr;
    size = std::strtoull(at, &end, 10);
    if (end == at || *end != ' ') return fail(data_loss(fmt::format("row {}/{:016x} in etcd is damaged", to_string(table), id)));
    at = end + 1;
  }
  const std::string_view rest = std::string_view(text).substr(static_cast<std::size_t>(at - text.c_str()));
  // The text may be longer than the row: parts of an earlier, longer row may follow.
  if (rest.size() < sizes[2] || sizes[0] > sizes[2] || sizes[1] > sizes[2] - sizes[0]) {
    return fail(data_loss(fmt::format("row {}/{:016x} in etcd is incomplete", to_string(table), id)));
  }
  return Record{table, id, std::string(rest.substr(0, sizes[0])), std::string(rest.substr(sizes[0], sizes[1])),
                Bytes::copy_of(rest.substr(sizes[0] + sizes[1], sizes[2] - sizes[0] - sizes[1]))};
}

// The requests to etcd. They block, so they run in the store's thread.
class Writer {
 public:
  Writer(runtime::Clock& clock, const Address& address, const Leadership& leadership, const StoreOptions& options,
         std::unique_ptr<Client> client)
      : clock_(clock),
        address_(address),
        leadership_(leadership),
        options_(options),
        client_(std::move(client)),
        at_(first_sequence(leadership.id)),
        written_(leadership.revision) {}

  Result<void> keep(std::deque<Ops> pieces) {
    SHOAL_OK(finish_journal());
    if (cancel_journal_) SHOAL_OK(clear_journal());
    if (pieces.empty()) return {};
    if (pieces.size() == 1) return write(pieces.front().list);
    cancel_journal_ = true;  // a failure before etcd has confirmed the mark leaves a journal that must not count
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      SHOAL_OK(write(json::array({put(journal(i), pieces[i].list.dump())})));
    }
    SHOAL_OK(write(json::array({put(address_.key("journal-marked"), std::to_string(pieces.size()))})));
    cancel_journal_ = false;
    marked_ = true;
    for (auto& piece : pieces) unapplied_.push_back(std::move(piece.list));
    (void)finish_journal();  // the commit is safe already: what is not in place yet follows before the next commit
    return {};
  }

  Result<std::vector<Record>> load() {
    SHOAL_OK(write(json::array()));  // fails if this head no longer leads
    SHOAL_OK(recover_journal());
    std::map<std::pair<TableName, std::uint64_t>, std::string> texts;
    const std::string rows = address_.key("rows/"), end = end_of(rows);
    for (std::string from = rows;;) {
      SHOAL_TRY(const auto page, patiently([&] { return client_->range(from, end, kPage); }));
      for (const auto& kv : page) SHOAL_OK(take(kv.key.substr(rows.size()), kv.value, texts));
      if (page.size() < static_cast<std::size_t>(kPage)) break;
      from = page.back().key + '\0';
    }
    SHOAL_OK(write(json::array()));  // fails if another head wrote meanwhile
    std::vector<Record> out;
    for (const auto& [at, text] : texts) {
      auto record = decode(at.first, at.second, text);
      // The head sets aside a row that it cannot read, and goes on with the others.
      out.push_back(record ? *std::move(record) : Record{at.first, at.second, {}, {}, Bytes::copy_of(text)});
    }
    return out;
  }

  std::int64_t written() const { return written_; }  // etcd's revision of the last write; any thread
  // Makes a write under way give up soon.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    woken_.notify_all();
  }

 private:
  std::string journal(std::size_t i) const { return address_.key(fmt::format("journal/{:04}", i)); }

  // Takes TABLE/ID or TABLE/ID/PART, called in the order of keys.
  static Result<void> take(const std::string& key, const std::string& value,
                           std::map<std::pair<TableName, std::uint64_t>, std::string>& texts) {
    const auto slash = key.find('/');
    for (std::size_t i = 0; i < kNumTables; ++i) {
      const auto table = static_cast<TableName>(i);
      if (key.substr(0, slash) != to_string(table)) continue;
      texts[{table, std::strtoull(key.c_str() + slash + 1, nullptr, 16)}] += value;
      return {};
    }
    return fail(data_loss("etcd has a row of an unknown table: " + key));
  }

  // Makes one transaction, which succeeds only while this head leads. Returns Unavailable if its outcome is unknown: it may have happened.
  // Once a later transaction succeeds, this one can no longer happen.
  Result<void> write(json ops) {
    const std::string mine = fmt::format("{}:{}", leadership_.id, ++num_writes_);
    const std::string leader = leader_key(address_), sequence = sequence_key(address_);
    ops.push_back(put(sequence, mine));
    const json otherwise = json::array({range(leader), range(sequence)});
    for (;;) {
      const json compare = json::array({if_created_at(leader, leadership_.revision), if_value(sequence, at_)});
      SHOAL_TRY(const TxnReply reply, patiently([&] { return client_->txn(compare, ops, otherwise); }));
      if (reply.succeeded) written_ = reply.revision;
      if (reply.succeeded) break;
      const auto& leaders = reply.ranges[0];
      if (leaders.empty() || leaders[0].create_revision != leadership_.revision) {
        return fail(unavailable("this head no longer leads").with_reason("Fenced"));
      }
      const std::string there = reply.ranges[1].empty() ? "" : reply.ranges[1][0].value;
      if (there == mine) break;  // this write was repeated because its answer was lost, and has happened
      if (there == at_ || !there.starts_with(leadership_.id + ":")) {
        return fail(data_loss("another program writes to " + address_.text()));
      }
      at_ = there;  // an earlier write, which was given up, has happened after all
    }
    at_ = mine;
    return {};
  }

  // Repeats an attempt while etcd does not answer, for the time `give_up` at most.
  template <class F>
  auto patiently(F&& attempt) -> decltype(attempt()) {
    const auto end = clock_.now() + options_.give_up;
    for (;;) {
      auto out = attempt();
      if (out || out.error().code() != Code::kUnavailable || clock_.now() >= end) return out;
      std::unique_lock lock(mutex_);
      if (woken_.wait_for(lock, kPause, [this] { return stopped_; })) return out;
    }
  }

  Result<void> finish_journal() {
    if (!marked_) return {};
    while (!unapplied_.empty()) {
      SHOAL_OK(write(unapplied_.front()));
      unapplied_.pop_front();
    }
    SHOAL_OK(clear_journal());
    marked_ = false;
    return {};
  }

  Result<void> clear_journal() {
    SHOAL_OK(write(json::array({erase(address_.key("journal-marked")), erase_below(address_.key("journal/"))})));
    cancel_journal_ = false;
    return {};
  }

  Result<void> recover_journal() {
    const std::string mark = address_.key("journal-marked"), chunks = address_.key("journal/");
    SHOAL_TRY(const auto marks, patiently([&] { return client_->range(mark, mark + '\0', 1); }));
    std::vector<KeyValue> found;
    for (std::string from = chunks;;) {
      SHOAL_TRY(const auto page, patiently([&] { return client_->range(from, end_of(chunks), kPage); }));
      found.insert(found.end(), page.begin(), page.end());
      if (page.size() < static_cast<std::size_t>(kPage)) break;
      from = page.back().key + '\0';
    }
    if (marks.empty()) return found.empty() ? Result<void>() : clear_journal();
    if (marks[0].value != std::to_string(found.size())) return fail(data_loss("a journal in etcd is incomplete"));
    for (const auto& kv : found) {
      json ops = json::parse(kv.value, nullptr, false);
      if (!ops.is_array()) return fail(data_loss("a journal in etcd is damaged"));
      unapplied_.push_back(std::move(ops));
    }
    marked_ = true;
    return finish_journal();
  }

  runtime::Clock& clock_;
  const Address address_;
  const Leadership leadership_;
  const StoreOptions options_;
  const std::unique_ptr<Client> client_;
  std::string at_;  // value of the sequence key after the last answered write
  std::atomic<std::int64_t> written_;
  std::uint64_t num_writes_ = 0;
  bool cancel_journal_ = false;  // a commit was given up: clear its journal, since the next commit has all of its changes
  bool marked_ = false;
  std::deque<json> unapplied_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool stopped_ = false;
};

class EtcdStore final : public Store {
 public:
  EtcdStore(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log, const Address& address, const Leadership& leadership,
            const StoreOptions& options, std::unique_ptr<Client> client, std::unique_ptr<Client> compacts)
      : loop_(loop),
        address_(address),
        writer_(clock, address, leadership, options, std::move(client)),
        compactor_(std::move(log), std::move(compacts), options.compact_every, [this] { return writer_.written(); }),
        thread_([this] { run(); }) {}
  ~EtcdStore() override {
    *alive_ = false;
    writer_.stop();
    const std::lock_guard lock(mutex_);
    over_ = true;
    woken_.notify_one();
  }

  void commit(const std::vector<Record>& records, std::function<void(Result<void>)> on_end) override {
    std::map<std::pair<TableName, std::uint64_t>, const Record*> last;
    for (const auto& r : records) last[{r.table, r.id}] = &r;
    std::deque<Ops> all(1);
    const auto add = [&](json op, std::size_t bytes, std::size_t most) {
      if (all.back().list.size() == kMaxOps || all.back().bytes + bytes > most) all.emplace_back();
      all.back().list.push_back(std::move(op));
      all.back().bytes += bytes;
    };
    for (const std::size_t most : {kMaxBytes, kChunkBytes}) {  // first as one transaction, then as a journal of smaller chunks
      all.assign(1, {});
      for (const auto& [at, record] : last) {
        const std::string key = address_.key(fmt::format("rows/{}/{:016x}", to_string(at.first), at.second));
        if (record->bytes.empty()) {
          add(erase_below_and_at(key), key.size(), most);
          continue;
        }
        const std::string text = encode(*record);
        for (std::size_t from = 0, part = 0; from < text.size(); from += kPartBytes, ++part) {
          const std::string piece = text.substr(from, kPartBytes);
          add(put(part == 0 ? key : fmt::format("{}/{:04}", key, part), piece), key.size() + piece.size(), most);
        }
      }
      if (all.size() == 1) break;
    }
    if (all.size() == 1 && all.front().list.empty()) return on_end({});
    const std::lock_guard lock(mutex_);
    SHOAL_CHECK(!on_end_, "a commit begins before the previous one has ended");
    pieces_ = std::move(all);
    on_end_ = std::move(on_end);
    work_ = true;
    woken_.notify_one();
  }

  Result<std::vector<Record>> load() override { return writer_.load(); }  // called before the first commit, so the thread is idle

 private:
  // Erases the key and its parts.
  static json erase_below_and_at(const std::string& key) {
    json out = erase_below(key + "/");
    out["request_delete_range"]["key"] = erase(key)["request_delete_range"]["key"];
    return out;
  }

  void run() {
    for (;;) {
      std::deque<Ops> pieces;
      {
        std::unique_lock lock(mutex_);
        woken_.wait(lock, [this] { return over_ || work_; });
        if (over_) return;
        work_ = false;
        pieces = std::move(pieces_);
      }
      auto result = std::make_shared<Result<void>>(writer_.keep(std::move(pieces)));
      loop_.post([this, alive = alive_, result] {
        if (!*alive) return;
        std::unique_lock lock(mutex_);
        const auto on_end = std::exchange(on_end_, {});
        lock.unlock();
        on_end(std::move(*result));
      });
    }
  }

  runtime::Loop& loop_;
  const Address address_;
  Writer writer_;
  Compactor compactor_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool work_ = false, over_ = false;
  std::deque<Ops> pieces_;
  std::function<void(Result<void>)> on_end_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // loop thread only
  runtime::SideThread thread_;                                        // last member, so it ends first
};

}  // namespace

std::string leader_key(const Address& address) { return address.key("leader"); }
std::string sequence_key(const Address& address) { return address.key("sequence"); }
std::string first_sequence(const std::string& id) { return id + ":0"; }

Result<std::unique_ptr<Store>> open_store(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log, const Address& address,
                                          const Leadership& leadership, const StoreOptions& options) {
  SHOAL_TRY(auto writes, Client::open(address, options.request_timeout));
  SHOAL_TRY(auto compacts, Client::open(address, options.request_timeout));
  return std::unique_ptr<Store>(
      std::make_unique<EtcdStore>(loop, clock, std::move(log), address, leadership, options, std::move(writes), std::move(compacts)));
}

}  // namespace shoal::scheduler::etcd
