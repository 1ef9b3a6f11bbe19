// Channels of compiled graphs (shoal.dag). A channel is a ring in a memory of the node. The graph has one for each value that passes
// between two processes.
//
// A record's first bytes hold its kind. Plain values (None, bool, int, float, bytes, str) are written and read here. Any other value is a
// pickle followed by its buffers. A value above the channel's limit lies elsewhere, and the record has a reference to it, which Python
// reads (shoal/dag/_channels.py). A channel has room for as many values of that limit as may be in flight, so that a write never waits.
#include <cstring>

#include "python/native/session/session.h"
#include "runtime/shm/ring.h"

namespace shoal::python {

namespace {

using runtime::Mapping;
using runtime::Ring;
using runtime::Spin;
using runtime::Waited;
using std::chrono::milliseconds;

// Options of waits that spin: they offer their core at once, because a graph often has more processes than there are cores.
Spin::Options offering() {
  Spin::Options out;
  out.alone = {};
  return out;
}

enum class Kind : std::uint8_t { kNone, kFalse, kTrue, kInt, kFloat, kBytes, kText, kPickle, kElsewhere };

struct Head {
  Kind kind;
  bool raised;  // for a pickle: it is an exception that was raised
  std::uint16_t unused;
  std::uint32_t num_buffers;  // for a pickle: its sizes, the pickle and the buffers follow
  std::uint64_t bytes;        // size of the rest; for a pickle without its buffers
};
static_assert(sizeof(Head) == 16);

constexpr std::size_t kAlignment = 64;  // alignment of buffers in a record
constexpr std::size_t kMaxBuffers = 1 << 14;
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Error closed() { return unavailable("the channels of this graph are closed").with_reason("ChannelClosed"); }

// The memory of a graph's channels.
class Channels {
 public:
  Channels(PySession& session, const std::string& name, std::size_t count, std::size_t capacity) : count_(count), capacity_(capacity) {
    const auto use = session.use();
    memory_ = without_gil([&] { return use->memory()->open(name, count * stride(), -1); });
  }
  // Ends the waits on these channels in all processes. From any thread; may be repeated.
  void close() const {
    for (std::size_t i = 0; i < count_; ++i) Ring(at(i), capacity_).close();
  }
  bool closed() const { return count_ > 0 && Ring(at(0), capacity_).closed(); }

  std::byte* at(std::size_t index) const {
    if (index >= count_) throw nb::index_error("no such channel");
    return memory_->data() + index * stride();
  }
  std::size_t capacity() const { return capacity_; }
  const std::shared_ptr<Mapping>& memory() const { return memory_; }

 private:
  std::size_t stride() const { return (Ring::bytes(capacity_) + 4095) / 4096 * 4096; }

  std::size_t count_, capacity_;
  std::shared_ptr<Mapping> memory_;
};

// One thread at a time.
class Sender {
 public:
  Sender(const Channels& channels, std::size_t index, std::size_t limit)
      : memory_(channels.memory()), ring_(channels.at(index), channels.capacity()), limit_(limit) {}

  // Returns true if write() accepts the value.
  bool takes(const nb::handle& value) const {
    PyObject* const v = value.ptr();
    if (v == Py_None || PyBool_Check(v) || PyFloat_CheckExact(v)) return true;
    if (PyLong_CheckExact(v)) {
      int overflow = 0;
      (void)PyLong_AsLongLongAndOverflow(v, &overflow);
      return overflow == 0;
    }
    if (PyBytes_CheckExact(v)) return static_cast<std::size_t>(PyBytes_Size(v)) <= limit_;
    Py_ssize_t bytes = 0;
    if (!PyUnicode_CheckExact(v)) return false;
    if (PyUnicode_AsUTF8AndSize(v, &bytes) != nullptr) return static_cast<std::size_t>(bytes) <= limit_;
    PyErr_Clear();  // the text has surrogates, which UTF-8 cannot encode
    return false;
  }

  // Writes a plain value. Returns false, and writes nothing, if the value is not plain or is too long.
  bool write(const nb::handle& value) {
    PyObject* const v = value.ptr();
    if (v == Py_None) return put(Kind::kNone, {});
    if (v == Py_True) return put(Kind::kTrue, {});
    if (v == Py_False) return put(Kind::kFalse, {});
    if (!takes(value)) return false;
    if (PyLong_CheckExact(v)) {
      const long long number = PyLong_AsLongLong(v);
      return put(Kind::kInt, std::as_bytes(std::span(&number, 1)));
    }
    if (PyFloat_CheckExact(v)) {
      const double number = PyFloat_AsDouble(v);
      return put(Kind::kFloat, std::as_bytes(std::span(&number, 1)));
    }
    if (PyBytes_CheckExact(v)) {
      return put(Kind::kBytes, {reinterpret_cast<std::byte*>(PyBytes_AsString(v)), static_cast<std::size_t>(PyBytes_Size(v))});
    }
    Py_ssize_t bytes = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(v, &bytes);
    return put(Kind::kText, {reinterpret_cast<const std::byte*>(text), static_cast<std::size_t>(bytes)});
  }

  // The caller has checked the size (Outgoing in shoal/dag/_channels.py).
  void write_pickle(const nb::bytes& head, const std::vector<ReadBuffer>& buffers, bool raised) {
    std::size_t bytes = sizeof(Head) + buffers.size() * sizeof(std::uint64_t) + head.size();
    const std::size_t beside = aligned(bytes);
    if (!buffers.empty()) bytes = beside;
    for (const auto& b : buffers) bytes += aligned(b.size());
    if (bytes > limit_ || buffers.size() > kMaxBuffers) throw nb::value_error("this value is too large for its channel");
    std::byte* const at = reserve(bytes);
    std::vector<std::uint64_t> sizes;
    for (const auto& b : buffers) sizes.push_back(b.size());
    const Head h{Kind::kPickle, raised, 0, static_cast<std::uint32_t>(buffers.size()), head.size()};
    std::memcpy(at, &h, sizeof h);
    std::memcpy(at + sizeof h, sizes.data(), sizes.size() * sizeof(std::uint64_t));
    std::memcpy(at + sizeof h + sizes.size() * sizeof(std::uint64_t), head.data(), head.size());
    std::size_t to = beside;
    for (const auto& b : buffers) {
      std::memcpy(at + to, b.data(), b.size());
      to += aligned(b.size());
    }
    ring_.commit();
  }

  void write_elsewhere(const nb::bytes& where, bool raised) {
    if (where.size() > limit_) throw nb::value_error("these words are too long");
    put(Kind::kElsewhere, span_of(where), raised);
  }

 private:
  bool put(Kind kind, std::span<const std::byte> bytes, bool raised = false) {
    std::byte* const at = reserve(sizeof(Head) + bytes.size());
    const Head h{kind, raised, 0, 0, bytes.size()};
    std::memcpy(at, &h, sizeof h);
    if (!bytes.empty()) std::memcpy(at + sizeof h, bytes.data(), bytes.size());
    ring_.commit();
    return true;
  }

  std::byte* reserve(std::size_t bytes) {
    while (true) {
      if (ring_.closed()) raise(python::closed());
      if (const auto room = unwrap(ring_.reserve(bytes))) return room->data();
      {
        const GilReleased release;  // no room, because too many values are in flight: waits for the reader
        ring_.wait(bytes, milliseconds(50), spin_);
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

  std::shared_ptr<Mapping> memory_;
  runtime::RingWriter ring_;
  std::size_t limit_;
  Spin spin_{offering()};
};

// One thread at a time.
class Receiver {
 public:
  // read() returns `unpack`(head, buffers, raised, elsewhere) for values that are not plain.
  Receiver(const Channels& channels, std::size_t index, nb::object unpack)
      : memory_(channels.memory()), ring_(channels.at(index), channels.capacity()), unpack_(std::move(unpack)) {}

  // Reads the next value. Raises Unavailable/ChannelClosed after the last one.
  nb::object read() {
    auto record = unwrap(ring_.peek());
    while (!record) {
      wait({}, milliseconds(10'000), false);
      record = unwrap(ring_.peek());
    }
    return take(*record);
  }
  // Reads a value and appends it to `values`. Signal handlers run during the wait, but not between the two, where the value would be lost.
  void read_into(nb::list values, std::optional<double> timeout) {
    auto record = unwrap(ring_.peek());
    while (!record) {
      wait(timeout, milliseconds(50), true);
      record = unwrap(ring_.peek());
    }
    values.append(take(*record));
  }

 private:
  void wait(std::optional<double> timeout, milliseconds slice, bool interruptible) {
    using Clock = std::chrono::steady_clock;
    std::optional<Clock::time_point> end;
    if (timeout && *timeout < 1e9)
      end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*timeout));
    while (true) {
      auto limit = slice;
      if (end) limit = std::min(limit, std::max(milliseconds(0), std::chrono::ceil<milliseconds>(*end - Clock::now())));
      const Waited waited = [&] {
        const GilReleased release;
        return ring_.wait(limit, spin_);
      }();
      if (waited == Waited::kReady) return;
      if (waited == Waited::kClosed) raise(closed());
      if (interruptible && PyErr_CheckSignals() != 0) throw nb::python_error();
      if (end && Clock::now() >= *end) raise(deadline_exceeded("no value arrived within the timeout").with_reason("ChannelTimeout"));
    }
  }

  nb::object take(std::span<const std::byte> record) {
    Head h{};
    if (record.size() < sizeof h) broken();
    std::memcpy(&h, record.data(), sizeof h);
    const auto body = record.subspan(sizeof h);
    const auto* const text = reinterpret_cast<const char*>(body.data());
    const bool number = h.kind == Kind::kInt || h.kind == Kind::kFloat;
    if (h.bytes > body.size() || (number && h.bytes != 8)) broken();
    nb::object out;
    switch (h.kind) {
      case Kind::kNone:
        out = nb::none();
        break;
      case Kind::kFalse:
        out = nb::borrow(Py_False);
        break;
      case Kind::kTrue:
        out = nb::borrow(Py_True);
        break;
      case Kind::kInt: {
        long long value = 0;
        std::memcpy(&value, body.data(), sizeof value);
        out = nb::steal(PyLong_FromLongLong(value));
        break;
      }
      case Kind::kFloat: {
        double value = 0;
        std::memcpy(&value, body.data(), sizeof value);
        out = nb::steal(PyFloat_FromDouble(value));
        break;
      }
      case Kind::kBytes:
        out = nb::bytes(text, h.bytes);
        break;
      case Kind::kText:
        out = nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(h.bytes), nullptr));
        break;
      case Kind::kPickle:
        return unpickled(h, record);
      case Kind::kElsewhere: {
        const nb::bytes where(text, h.bytes);
        ring_.pop();
        return unpack_(where, nb::list(), h.raised, true);
      }
      default:
        broken();
    }
    ring_.pop();
    if (!out.is_valid()) throw nb::python_error();
    return out;
  }

  // Copies the buffers into one new memory.
  nb::object unpickled(const Head& h, std::span<const std::byte> record) {
    const std::size_t in_sizes = h.num_buffers * sizeof(std::uint64_t);
    if (h.num_buffers > kMaxBuffers || sizeof h + in_sizes + h.bytes > record.size()) broken();
    std::vector<std::uint64_t> sizes(h.num_buffers);
    std::memcpy(sizes.data(), record.data() + sizeof h, in_sizes);
    const std::size_t beside = aligned(sizeof h + in_sizes + h.bytes);
    std::size_t total = 0;
    for (const auto s : sizes) {
      if (s > record.size()) broken();
      total += aligned(s);
    }
    if (!sizes.empty() && (beside > record.size() || total > record.size() - beside)) broken();
    const nb::bytes head(reinterpret_cast<const char*>(record.data() + sizeof h + in_sizes), h.bytes);
    nb::list buffers;
    if (!sizes.empty()) {
      const std::shared_ptr<std::byte> memory(static_cast<std::byte*>(std::aligned_alloc(kAlignment, std::max(total, kAlignment))),
                                              std::free);
      if (!memory) throw std::bad_alloc();
      std::memcpy(memory.get(), record.data() + beside, total);
      std::size_t at = 0;
      for (const auto s : sizes) {
        buffers.append(memory_view({memory.get() + at, s}, memory));
        at += aligned(s);
      }
    }
    ring_.pop();
    return unpack_(head, buffers, h.raised, false);
  }

  [[noreturn]] static void broken() { raise(invalid_argument("a channel has an impossible record").with_reason("BrokenRing")); }

  std::shared_ptr<Mapping> memory_;
  runtime::RingReader ring_;
  nb::object unpack_;
  Spin spin_{offering()};
};

}  // namespace

void bind_channel(nb::module_& m) {
  nb::class_<Channels>(m, "Channels", "The memory of a compiled graph's channels, by their numbers.")
      .def(nb::init<PySession&, const std::string&, std::size_t, std::size_t>(), nb::arg("session"), nb::arg("name"), nb::arg("count"),
           nb::arg("capacity"),
           "Opens the memory of this name of the job; zeroed by whoever asks first. `capacity`: of each, a power of two.")
      .def("close", &Channels::close, "Waits of all who use them end.")
      .def_prop_ro("closed", &Channels::closed);

  nb::class_<Sender>(m, "Sender", "The writing end of a channel. One thread at a time.")
      .def(nb::init<const Channels&, std::size_t, std::size_t>(), nb::arg("channels"), nb::arg("index"), nb::arg("limit"))
      .def("takes", &Sender::takes, nb::arg("value").none(), "Whether write takes it.")
      .def("write", &Sender::write, nb::arg("value").none(), "False, and nothing is written, if it is not plain or too long.")
      .def("write_pickle", &Sender::write_pickle, nb::arg("head"), nb::arg("buffers"), nb::arg("raised"))
      .def("write_elsewhere", &Sender::write_elsewhere, nb::arg("where"), nb::arg("raised"), "Words that say where a value lies.");

  nb::class_<Receiver>(m, "Receiver", "The reading end of a channel. One thread at a time.")
      .def(nb::init<const Channels&, std::size_t, nb::object>(), nb::arg("channels"), nb::arg("index"), nb::arg("unpack"),
           "unpack(head, buffers, raised, elsewhere): what read returns for what is not plain.")
      .def("read", &Receiver::read, "The next value.")
      .def("read_into", &Receiver::read_into, nb::arg("values"), nb::arg("timeout") = nb::none(), "Appends the next value to a list.");
}

}  // namespace shoal::python
