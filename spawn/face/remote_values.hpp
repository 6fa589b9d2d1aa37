// SPDX-License-Identifier: Apache-2.0
// The parts of remote.hpp, which includes this: timeouts, failures, memory to be sent, and how values are packed. It
// also has the functions and classes that other workers may call, by name.
#if __cplusplus < 202002L
#error "shmbroker/remote.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_remote.h)"
#elif !defined(SHMBROKER_REMOTE_VALUES_HPP)
#define SHMBROKER_REMOTE_VALUES_HPP

#include "spawn_msgpack.hpp"

#if SHMBROKER_EXCEPTIONS

#include <algorithm>
#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "shmbroker_remote.h"
#include "torch_words.hpp"

namespace shmbroker::remote {

template <class T>
class Remote;
template <class T>
class Future;

/// A worker of the world. A plain value; it may die, and another process may take its place.
struct WorkerInfo {
  int rank = -1;
  std::string name;
  /// The rank, by its name in torch.
  int id() const noexcept { return rank; }
  friend auto operator<=>(const WorkerInfo&, const WorkerInfo&) = default;
  friend std::ostream& operator<<(std::ostream& out, const WorkerInfo& info) {
    return out << "WorkerInfo(id=" << info.rank << ", name=" << info.name << ")";
  }
};

/// The worker that a call goes to, and the time that it may take: remote::at("b").within(500ms), or just "b", 1, an
/// info. A plain value.
class To {
 public:
  /// By rank, by name, or by an info, which counts by its rank. Throws std::bad_alloc.
  To(int rank) : rank_(rank) {}
  To(const char* name) : name_(name) {}
  To(std::string name) : name_(std::move(name)) {}
  To(std::string_view name) : name_(name) {}
  To(const WorkerInfo& info) : rank_(info.rank) {}
  /// The same worker with a time of its own; default: set_timeout(). Throws std::bad_alloc.
  To within(Timeout timeout) const {
    To out = *this;
    out.timeout_ = timeout;
    return out;
  }
  /// The time as the C functions take it.
  std::int64_t timeout() const noexcept { return timeout_.nanoseconds(); }
  /// The rank in a world. Throws Error with not_found if no worker has the name.
  int rank(shmb_remote* world) const {
    if (!name_) return rank_;
    shmb_worker worker{};
    worker.size = sizeof worker;
    shmb_error error;
    if (shmb_remote_worker(world, -1, name_->c_str(), &worker, &error) != SHMB_OK) throw Error(error);
    return worker.rank;
  }

 private:
  int rank_ = -1;
  std::optional<std::string> name_;
  Timeout timeout_;
};
/// For within(). Throws std::bad_alloc.
inline To at(To to) { return to; }

/// An exception of a function of another worker: its type, place and words. Standard exceptions, and those registered,
/// are thrown again as what they were: catch either that or this. A plain value.
class RemoteFailure {
 public:
  /// None; from the C form. Throws std::bad_alloc.
  RemoteFailure() = default;
  explicit RemoteFailure(const shmb_remote_failure& c)
      : status_(static_cast<Status>(c.status)),
        origin_{c.rank, c.worker},
        type_(c.type),
        text_(c.text),
        trace_(c.trace) {
    for (std::size_t i = 0; i < c.cause_count; ++i) causes_.push_back({c.causes[i].type, c.causes[i].text});
  }
  /// One of its causes, as a failure of its own with those behind it. Throws std::bad_alloc.
  RemoteFailure cause(std::size_t number) const {
    RemoteFailure out(*this);
    out.type_ = causes_[number].type;
    out.text_ = causes_[number].text;
    out.trace_.clear();
    out.causes_.erase(out.causes_.begin(), out.causes_.begin() + static_cast<std::ptrdiff_t>(number) + 1);
    return out;
  }
  /// Status::raised for an exception of the function; the worker where it happened; the exception's type, words and
  /// stack. They live as long as the object.
  Status status() const noexcept { return status_; }
  const WorkerInfo& origin() const noexcept { return origin_; }
  const std::string& type() const noexcept { return type_; }
  const std::string& text() const noexcept { return text_; }
  const std::string& trace() const noexcept { return trace_; }
  /// The exceptions that it was thrown from (std::throw_with_nested), the last one first. std::rethrow_if_nested throws
  /// the first of them.
  const std::vector<RaisedCause>& causes() const noexcept { return causes_; }
  /// A text of all, to print. Throws std::bad_alloc.
  std::string message() const {
    return "On WorkerInfo(id=" + std::to_string(origin_.rank) + ", name=" + origin_.name + "):\n" + trace_ +
           (type_.empty() ? "" : type_ + ": ") + text_ + shmbroker::detail::causes_text(causes_);
  }

 private:
  Status status_ = Status::raised;
  WorkerInfo origin_;
  std::string type_, text_, trace_;
  std::vector<RaisedCause> causes_;
};
/// A failure that is also an exception of type E, as the function threw it. A plain value.
template <class E>
class Raised : public E, public RemoteFailure {
 public:
  /// Made by the library. Throws std::bad_alloc.
  explicit Raised(const RemoteFailure& failure) : E(failure.message()), RemoteFailure(failure) {}
};
using RemoteException = Raised<std::runtime_error>;

/// Nothing is registered by the name of the call at that worker, or two functions are: status() is no_function. A plain
/// value.
class NoFunction : public Error, public RemoteFailure {
 public:
  /// Made by the library. Throws std::bad_alloc.
  NoFunction(const Error& error, const RemoteFailure& failure) : Error(error), RemoteFailure(failure) {}
  using Error::status;
};

namespace detail {

namespace inside = shmbroker::detail;

// One for each world that this process has been in.
class World {
 public:
  explicit World(shmb_remote* adopted) noexcept : handle_(adopted) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { shmb_remote_free(handle_); }
  shmb_remote* c() const noexcept { return handle_; }
  // The worker's own.
  const Session& session() {
    const std::lock_guard lock(mutex_);
    if (!session_) {
      shmb_session* raw = nullptr;
      shmb_error error;
      if (shmb_remote_session(handle_, &raw, &error) != SHMB_OK) throw Error(error);
      session_.emplace(raw);
    }
    return *session_;
  }

 private:
  shmb_remote* handle_;
  std::mutex mutex_;
  std::optional<Session> session_;
};

struct Current {
  std::mutex mutex;
  std::shared_ptr<World> world;
  std::atomic<pid_t> joining = 0;  // this process: its world's threads serve already, and it is not in `world` yet
  std::condition_variable joined;
};
inline Current& current() {
  static auto* const it = new Current;
  return *it;
}
class Joining {
 public:
  Joining() { current().joining = ::getpid(); }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;
  ~Joining() {
    const std::lock_guard lock(current().mutex);
    current().joining = 0;
    current().joined.notify_all();
  }
};
// Others have come sooner, and call: a function that calls others needs the world.
inline void await_world() {
  Current& it = current();
  if (it.joining == 0 || it.joining != ::getpid()) return;
  std::unique_lock lock(it.mutex);
  it.joined.wait(lock, [&it] { return it.joining == 0; });
}
inline std::shared_ptr<World> world() {
  Current& it = current();
  const std::lock_guard lock(it.mutex);
  if (it.world) return it.world;
  shmb_error error{};
  error.status = SHMB_E_CLOSED;
  std::strncpy(error.sentence, torch_words::kNotInitialized, sizeof error.sentence - 1);
  throw Error(error);
}

inline void check(int status, const shmb_error& error) {
  if (status != SHMB_OK) throw Error(error);
}

// With what is being handled as its cause, if anything is.
template <class E>
[[noreturn]] void raise(const RemoteFailure& failure) {
  if (!failure.causes().empty()) std::throw_with_nested(Raised<E>(failure));
  throw Raised<E>(failure);
}
using Rethrow = std::function<void(const RemoteFailure&)>;
inline std::map<std::string, Rethrow>& exceptions() {
  static auto* const all = [] {
    auto* made = new std::map<std::string, Rethrow>;
    const auto add = [&]<class E>(std::type_identity<E>, const char* name) {
      (*made)[name] = [](const RemoteFailure& failure) { raise<E>(failure); };
    };
    add(std::type_identity<std::runtime_error>(), "std::runtime_error");
    add(std::type_identity<std::logic_error>(), "std::logic_error");
    add(std::type_identity<std::invalid_argument>(), "std::invalid_argument");
    add(std::type_identity<std::domain_error>(), "std::domain_error");
    add(std::type_identity<std::length_error>(), "std::length_error");
    add(std::type_identity<std::out_of_range>(), "std::out_of_range");
    add(std::type_identity<std::range_error>(), "std::range_error");
    add(std::type_identity<std::overflow_error>(), "std::overflow_error");
    add(std::type_identity<std::underflow_error>(), "std::underflow_error");
    return made;
  }();
  return *all;
}

// As it was thrown: the first of all, and while that is handled what was thrown from it.
[[noreturn]] inline void throw_chain(const RemoteFailure& failure) {
  const auto throw_it = [](const RemoteFailure& one) {
    if (const auto found = exceptions().find(one.type()); found != exceptions().end()) found->second(one);
    raise<std::runtime_error>(one);
  };
  if (!failure.causes().empty()) {
    try {
      throw_chain(failure.cause(0));
    } catch (...) {
      throw_it(failure);
    }
  }
  throw_it(failure);
  std::abort();  // it throws
}

[[noreturn]] inline void throw_failure(const shmb_remote_failure& c, const shmb_error& error) {
  if (c.status != SHMB_E_RAISED && c.status != SHMB_E_NO_FUNCTION) throw Error(error);
  const RemoteFailure failure(c);
  if (c.status == SHMB_E_NO_FUNCTION) throw NoFunction(Error(error), failure);
  throw_chain(failure);
}

struct HandleCloser {
  void operator()(shmb_future* future) const noexcept { shmb_future_free(future); }
  void operator()(shmb_reference* reference) const noexcept { shmb_reference_free(reference); }
};
using FutureHandle = std::unique_ptr<shmb_future, HandleCloser>;

[[noreturn]] inline void throw_future(shmb_future* future, const shmb_error& error) {
  shmb_remote_failure failure{};
  failure.size = sizeof failure;
  if (shmb_future_failure(future, &failure, nullptr) == SHMB_OK) throw_failure(failure, error);
  throw Error(error);
}

// The handles beside the bytes of one call.
struct Packing {
  std::vector<shmb_region*> regions;
  std::vector<shmb_reference*> references;
  std::vector<std::shared_ptr<const void> > alive;
};
inline thread_local Packing* packing = nullptr;
inline thread_local shmb_content* unpacking = nullptr;

// While bytes are packed, or taken apart: whichever is given is where values find what goes, or came, beside them.
class Scope final : inside::Beside {
 public:
  explicit Scope(Packing* now) : Scope(now, nullptr) {}
  explicit Scope(shmb_content* now) : Scope(nullptr, now) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() {
    packing = packing_;
    unpacking = unpacking_;
    inside::beside = beside_;
  }

 private:
  Scope(Packing* packs, shmb_content* unpacks)
      : packing_(std::exchange(packing, packs)),
        unpacking_(std::exchange(unpacking, unpacks)),
        beside_(std::exchange(inside::beside, static_cast<inside::Beside*>(this))) {}
  std::uint32_t give(shmb_region* region) override {
    if (packing == nullptr) throw std::logic_error("a region cannot be packed while others are unpacked");
    packing->regions.push_back(region);
    return static_cast<std::uint32_t>(packing->regions.size() - 1);
  }
  shmb_region* take(std::uint32_t number, bool writable) override {
    if (unpacking == nullptr) throw inside::TypeError();
    shmb_region* raw = nullptr;
    shmb_error error;
    check(shmb_content_take_region(unpacking, number, &raw, &error), error);
    shmb_region_info info{};
    info.size = sizeof info;
    if (writable && (shmb_region_get_info(raw, &info, nullptr) != SHMB_OK || (info.rights & SHMB_RIGHT_WRITE) == 0)) {
      (void)shmb_release(raw, 0, nullptr);
      throw std::invalid_argument("a region that came read-only cannot be taken as one to write");
    }
    return raw;
  }
  const Session& session() override { return world()->session(); }

  Packing* packing_;
  shmb_content* unpacking_;
  inside::Beside* beside_;
};

inline constexpr std::int8_t kBytesExtension = 16, kReferenceExtension = 17;

inline void pack_number(inside::Packer& packer, std::int8_t kind, std::size_t number) {
  const auto index = static_cast<std::uint32_t>(number);
  packer.extension(kind, &index, sizeof index);
}
// Of what came beside a call that is being unpacked.
inline std::size_t take_number(inside::Reader& in, std::int8_t kind) {
  const inside::Reader::Item item = in.take(inside::Reader::Kind::extension);
  std::uint32_t index = 0;
  if (item.type != kind || item.bytes.size() != sizeof index || unpacking == nullptr) throw inside::TypeError();
  std::memcpy(&index, item.bytes.data(), sizeof index);
  return index;
}

}  // namespace detail

/// Memory to be sent: from 64 KiB on a region, which the receiver maps instead of copying it. Ownership: copies share
/// the memory. Lifetime: as the last copy. Threads: any; each holder may write, and the others see it.
class Bytes {
 public:
  /// None; `size` zero bytes; or a copy of a text. Throws std::bad_alloc; above 64 KiB Error as a create of a region
  /// does, or if the process is in no world.
  Bytes() = default;
  explicit Bytes(std::size_t size) : size_(size) {
    if (size <= SHMB_REMOTE_INLINE) {
      auto memory = std::make_shared<std::vector<std::byte> >(size);
      data_ = memory->data();
      memory_ = std::move(memory);
      return;
    }
    shmb_region* raw = nullptr;
    shmb_error error;
    detail::check(shmb_remote_region(detail::world()->c(), size, &raw, &error), error);
    adopt(raw, size);
  }
  explicit Bytes(std::string_view text) : Bytes(text.size()) {
    if (!text.empty()) std::memcpy(data_, text.data(), text.size());
  }
  /// The memory, as bytes, as text, or as many whole T as fit. It is valid as long as a copy exists.
  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data_), size_}; }
  template <class T>
  std::span<T> as_span() const noexcept {
    static_assert(std::is_trivially_copyable_v<T>, "shared memory holds objects that are their bytes");
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }
  /// Whether the receiver maps it.
  bool is_region() const noexcept { return region_ != nullptr; }

  /// For the library: how it travels. Throws std::logic_error for a region outside of a remote call.
  void pack_value(detail::inside::Packer& packer) const {
    if (region_ == nullptr) return packer.binary(data_, size_);
    if (detail::packing == nullptr) throw std::logic_error("Bytes in a region can only be packed for a remote call");
    packer.array(2);
    detail::pack_number(packer, detail::kBytesExtension, detail::packing->regions.size());
    packer.whole(size_);
    detail::packing->regions.push_back(region_.get());
    detail::packing->alive.push_back(region_);
  }
  /// For the library. Throws Error.
  void unpack_value(detail::inside::Reader& in) {
    if (in.peek().kind == detail::inside::Reader::Kind::binary) {
      *this = Bytes(in.bytes());
      return;
    }
    if (in.array() != 2) throw detail::inside::TypeError();
    const std::size_t number = detail::take_number(in, detail::kBytesExtension);
    const auto size = detail::inside::Codec<std::uint64_t>::unpack(in);
    shmb_region* raw = nullptr;
    shmb_error error;
    detail::check(shmb_content_take_region(detail::unpacking, number, &raw, &error), error);
    adopt(raw, static_cast<std::size_t>(size));
  }

 private:
  void adopt(shmb_region* raw, std::size_t size) {
    region_ = std::shared_ptr<shmb_region>(raw, [](shmb_region* region) { (void)shmb_release(region, 0, nullptr); });
    if (size > shmb_region_length(raw)) throw detail::inside::TypeError();
    data_ = static_cast<std::byte*>(shmb_region_data(raw));
    size_ = size;
  }
  std::shared_ptr<void> memory_;
  std::shared_ptr<shmb_region> region_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

namespace detail {

struct None {
  void pack_value(inside::Packer& packer) const { packer.nil(); }
  void unpack_value(inside::Reader& in) { (void)in.skip(); }
};
// The class has SHMBROKER_FIELDS or MSGPACK_DEFINE.
template <class T>
concept Fetched = inside::OwnValue<T> || inside::MsgpackClass<T>;
template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, None, T>;

// Arguments or a result as one payload, borrowed from this.
class Parcel {
 public:
  template <class... A>
  static Parcel of_arguments(const A&... arguments) {
    Parcel out;
    const Scope scope(&out.beside_);
    inside::pack_arguments(out.packer_, {}, arguments...);
    return out;
  }
  template <class T>
  static Parcel of_value(const T& value) {
    Parcel out;
    const Scope scope(&out.beside_);
    inside::Codec<T>::pack(out.packer_, value, {});
    return out;
  }
  shmb_payload c() const noexcept {
    return {packer_.bytes().data(), packer_.bytes().size(),    beside_.regions.data(),
            beside_.regions.size(), beside_.references.data(), beside_.references.size()};
  }

 private:
  inside::Packer packer_;
  Packing beside_;
};

// The one value that the content is.
inline inside::Reader opened(const shmb_content* content) {
  const std::string_view bytes(static_cast<const char*>(shmb_content_data(content)), shmb_content_length(content));
  if (!inside::Reader::is_value(bytes)) throw inside::Malformed();
  return inside::Reader(bytes);
}
template <class T>
Stored<T> value_of(shmb_content* content, const char* what) {
  if constexpr (std::is_void_v<T>) {
    return {};
  } else {
    const Scope scope(content);
    inside::Reader in = opened(content);
    const inside::Reader begin = in;
    try {
      return inside::Codec<T>::unpack(in);
    } catch (const inside::TypeError&) {
      throw std::invalid_argument(std::string(what) + ": expected " + inside::demangled(typeid(T).name()) + ", found " +
                                  inside::found_text<T>(begin.peek()));
    }
  }
}

// A value at its owner.
struct Object {
  explicit Object(const std::type_info& of) : type(of) {}
  virtual ~Object() = default;
  virtual void* address() = 0;
  virtual Parcel parcel() const = 0;
  const std::type_info& type;
};
template <class T, bool fetched>
struct ObjectOf final : Object {
  template <class... A>
  explicit ObjectOf(A&&... arguments) : Object(typeid(T)), value(std::forward<A>(arguments)...) {}
  void* address() override { return &value; }
  Parcel parcel() const override {
    if constexpr (fetched) return Parcel::of_value(value);
    else
      throw std::logic_error("an object of type " + inside::demangled(typeid(T).name()) +
                             " cannot be fetched: call its methods, or give it SHMBROKER_FIELDS or MSGPACK_DEFINE");
  }
  T value;
};

inline void drop_object(void*, void* object) { delete static_cast<Object*>(object); }

// The type that was thrown at another worker, where its failure was a cause here.
inline std::string without_raised(std::string type) {
  constexpr std::string_view wrapper = "shmbroker::remote::Raised<";
  if (!type.starts_with(wrapper) || !type.ends_with('>')) return type;
  return type.substr(wrapper.size(), type.size() - wrapper.size() - 1);
}

inline void answer_exception(shmb_request* request, const std::string& where) noexcept {
  shmb_remote_failure failure{};
  failure.size = sizeof failure;
  failure.status = SHMB_E_RAISED;
  inside::Thrown thrown = inside::thrown_now();
  if (thrown.type.empty()) thrown.type = "unknown";
  std::string trace = where;
  try {
    throw;
  } catch (const RemoteFailure& told) {  // from further on, with all that was told there
    if (!told.type().empty()) thrown.type = told.type();
    thrown.text = told.text();
    thrown.causes = told.causes();
    trace +=
        "from worker \"" + told.origin().name + "\" (rank " + std::to_string(told.origin().rank) + "): " + told.trace();
  } catch (...) {
  }
  for (RaisedCause& cause : thrown.causes) cause.type = without_raised(std::move(cause.type));
  const std::vector<shmb_cause> causes = thrown.c();
  failure.type = thrown.type.c_str();
  failure.text = thrown.text.c_str();
  failure.trace = trace.c_str();
  failure.causes = causes.data();
  failure.cause_count = causes.size();
  (void)shmb_request_fail(request, &failure, nullptr);
}

using Serve = std::function<void(shmb_request*)>;
struct Registered {
  Serve serve;
  std::string address;
  bool twice = false;
};
inline std::map<std::string, Registered>& registry() {
  static auto* const all = new std::map<std::string, Registered>;
  return *all;
}
template <class F>
bool enter(std::string_view name, const F& function, Serve serve) {
  std::string address(reinterpret_cast<const char*>(&function), sizeof function);
  auto& known = registry()[std::string(name)];
  known.twice |= !known.address.empty() && known.address != address;
  known.address = std::move(address);
  known.serve = std::move(serve);
  return true;
}

inline std::string place_of(shmb_request* request) {
  return "In function \"" + std::string(shmb_request_function(request)) + "\":\n";
}

template <class T>
struct IsFuture : std::false_type {};
template <class T>
struct IsFuture<Future<T> > : std::true_type {
  using value_type = T;
};

template <class T, class V>
void answer_value(shmb_request* request, V&& value) {
  std::unique_ptr<Object> object;
  std::string type;
  std::optional<Parcel> parcel;
  const bool creates = shmb_request_get_kind(request) == SHMB_REQUEST_CREATE;
  try {
    if (creates) {
      type = inside::demangled(typeid(T).name());
      object = std::make_unique<ObjectOf<T, true> >(std::forward<V>(value));
    } else {
      parcel = Parcel::of_value(static_cast<const T&>(value));
    }
  } catch (...) {
    return answer_exception(request, place_of(request));
  }
  if (creates) return (void)shmb_request_answer_object(request, object.release(), type.c_str(), nullptr);
  const shmb_payload payload = parcel->c();
  (void)shmb_request_answer(request, &payload, nullptr);
}
inline void refuse_constructor(shmb_request* request) noexcept {
  shmb_remote_failure failure{};
  failure.size = sizeof failure;
  failure.status = SHMB_E_INVALID;
  failure.text = "a constructor can only be called by shmb_remote_create, which gives a reference";
  (void)shmb_request_fail(request, &failure, nullptr);
}

// A function's result as a value of its own. Its arguments have gone when it is packed, and a view may look into one.
template <class R>
using Given = typename inside::AsValue<std::decay_t<R> >::type;
template <class R, class... P, class Call, std::size_t... n>
Given<R> with_arguments(shmb_request* request, const std::string& name, Call&& call, std::index_sequence<n...>) {
  shmb_content* const content = shmb_request_content(request);
  inside::Reader arguments = opened(content);
  const inside::Reader::Item head = arguments.take();
  const std::uint64_t count = head.kind == inside::Reader::Kind::array ? head.number : 0;
  if (head.kind != inside::Reader::Kind::array || count != sizeof...(P))
    throw std::invalid_argument("function \"" + name + "\" takes " + std::to_string(sizeof...(P)) + " arguments, " +
                                std::to_string(count) + " were given");
  [[maybe_unused]] auto values = [&] {
    const Scope scope(content);
    return std::tuple<inside::Kept<P>...>{inside::unpack_argument<inside::Kept<P> >(name, n + 1, arguments)...};
  }();
  return Given<R>(call(inside::passed<P>(std::get<n>(values))...));
}

// Of a future that is dropped before it has a result: its caller must not wait for ever.
struct Unanswered {
  void operator()(shmb_request* request) const noexcept {
    shmb_remote_failure failure{};
    failure.size = sizeof failure;
    failure.status = SHMB_E_INVALID;
    failure.text = "the future that the function gave was dropped before it had a result";
    (void)shmb_request_fail(request, &failure, nullptr);
  }
};

// Takes the arguments apart, calls, and answers, now or when the future that the function gave is done.
template <class R, class... P, class Call, std::size_t... n>
void invoke(shmb_request* request, Call&& call, std::index_sequence<n...>) {
  const std::string where = place_of(request);
  const std::string name = shmb_request_function(request);
  if constexpr (IsFuture<R>::value) {
    std::optional<R> outcome;
    try {
      outcome = with_arguments<R, P...>(request, name, call, std::index_sequence<n...>());
    } catch (...) {
      return answer_exception(request, where);
    }
    using T = typename IsFuture<R>::value_type;
    const auto held = std::make_shared<std::unique_ptr<shmb_request, Unanswered> >(request);
    outcome->when_done([held, where](const R& done) {
      shmb_request* const waiting = held->release();
      std::optional<Stored<Given<T> > > value;
      try {
        value.emplace(done.stored());
      } catch (...) {
        return answer_exception(waiting, where);
      }
      answer_value<Stored<Given<T> > >(waiting, std::move(*value));
    });
  } else {
    using T = Stored<Given<R> >;
    std::optional<T> value;
    try {
      if constexpr (std::is_void_v<R>) {
        with_arguments<R, P...>(request, name, call, std::index_sequence<n...>());
        value.emplace();
      } else {
        value.emplace(with_arguments<R, P...>(request, name, call, std::index_sequence<n...>()));
      }
    } catch (...) {
      return answer_exception(request, where);
    }
    answer_value<T>(request, std::move(*value));
  }
}
inline void serve_request(void*, shmb_request* request) noexcept {
  await_world();
  if (shmb_request_get_kind(request) == SHMB_REQUEST_FETCH) {
    std::optional<Parcel> parcel;
    try {
      parcel = static_cast<Object*>(shmb_request_object(request))->parcel();
    } catch (...) {
      return answer_exception(request, "While the value was packed:\n");
    }
    const shmb_payload payload = parcel->c();
    (void)shmb_request_answer(request, &payload, nullptr);
    return;
  }
  const std::string name = shmb_request_function(request);
  const auto found = registry().find(name);
  if (found != registry().end() && !found->second.twice) return found->second.serve(request);
  std::string known;
  for (const auto& [one, entry] : registry())
    if (known.size() < 400) known += (known.empty() ? "" : ", ") + one;
  const std::string text =
      found != registry().end()
          ? "two functions are registered as \"" + name + "\""
          : "no function \"" + name + "\" is registered there (registered: " + (known.empty() ? "none" : known) + ")";
  shmb_remote_failure failure{};
  failure.size = sizeof failure;
  failure.status = SHMB_E_NO_FUNCTION;
  failure.text = text.c_str();
  (void)shmb_request_fail(request, &failure, nullptr);
}

}  // namespace detail

// ---------------------------------------------------------------- what may be called

/// Registers a function by name. Its result goes to the caller. If the result is a Future, the Future's value goes
/// there. Call it before init(), as the macros below do. Returns true, for them. Throws std::bad_alloc.
template <class R, class... P>
bool register_function(std::string_view name, R (*function)(P...)) {
  return detail::enter(name, function, [function](shmb_request* request) {
    detail::invoke<R, P...>(request, function, std::index_sequence_for<P...>());
  });
}
/// A class, made by remote() from arguments of these types. The rest is as for register_function(). Throws
/// std::bad_alloc.
template <class C, class... P>
bool register_class(std::string_view name) {
  bool (*const mark)(std::string_view) = &register_class<C, P...>;
  return detail::enter(name, mark, [](shmb_request* request) {
    constexpr bool fetched = detail::Fetched<C>;
    if (shmb_request_get_kind(request) != SHMB_REQUEST_CREATE) return detail::refuse_constructor(request);
    std::unique_ptr<detail::Object> made;
    const std::string where = detail::place_of(request);
    try {
      made = detail::with_arguments<std::unique_ptr<detail::Object>, P...>(
          request, shmb_request_function(request),
          [](auto&&... arguments) -> std::unique_ptr<detail::Object> {
            return std::make_unique<detail::ObjectOf<C, fetched> >(std::forward<decltype(arguments)>(arguments)...);
          },
          std::index_sequence_for<P...>());
    } catch (...) {
      return detail::answer_exception(request, where);
    }
    const std::string type = detail::inside::demangled(typeid(C).name());
    (void)shmb_request_answer_object(request, made.release(), type.c_str(), nullptr);
  });
}
/// Methods, called through references: reference.rpc_sync<int>("Counter.add", 2). The rest is as for
/// register_function(). Throws std::bad_alloc.
template <class R, class C, class... P>
bool register_method(std::string_view name, R (C::*method)(P...)) {
  return detail::enter(name, method, [method](shmb_request* request) {
    detail::invoke<R, const Remote<C>&, P...>(
        request,
        [method](const Remote<C>& object, auto&&... arguments) -> R {
          return (object.local_value().*method)(std::forward<decltype(arguments)>(arguments)...);
        },
        std::make_index_sequence<sizeof...(P) + 1>());
  });
}
/// The same for a const method. Throws std::bad_alloc.
template <class R, class C, class... P>
bool register_method(std::string_view name, R (C::*method)(P...) const) {
  return detail::enter(name, method, [method](shmb_request* request) {
    detail::invoke<R, const Remote<C>&, P...>(
        request,
        [method](const Remote<C>& object, auto&&... arguments) -> R {
          return (object.local_value().*method)(std::forward<decltype(arguments)>(arguments)...);
        },
        std::make_index_sequence<sizeof...(P) + 1>());
  });
}
/// An exception type that can be made from a std::string: thrown again where it was called from. Returns true. Throws
/// std::bad_alloc.
template <class E>
bool register_exception() {
  detail::exceptions()[detail::inside::demangled(typeid(E).name())] = [](const RemoteFailure& failure) {
    detail::raise<E>(failure);
  };
  return true;
}
// At namespace scope.
#define SHMBROKER_REMOTE_ENTER(call) \
  [[maybe_unused]] static const bool SHMBROKER_SPAWN_JOIN(shmbroker_remote_, __COUNTER__) = ::shmbroker::remote::call
#define SHMBROKER_REMOTE_FUNCTION(name, function) SHMBROKER_REMOTE_ENTER(register_function)(name, function)
#define SHMBROKER_REMOTE_CLASS(name, ...) SHMBROKER_REMOTE_ENTER(register_class)<__VA_ARGS__>(name)
#define SHMBROKER_REMOTE_METHOD(name, ...) SHMBROKER_REMOTE_ENTER(register_method)(name, __VA_ARGS__)
#define SHMBROKER_REMOTE_EXCEPTION(...) SHMBROKER_REMOTE_ENTER(register_exception)<__VA_ARGS__>()

}  // namespace shmbroker::remote

#endif
#endif
