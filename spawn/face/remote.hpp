// SPDX-License-Identifier: Apache-2.0
// Remote in C++, header-only over shmbroker_remote.h. It has a world of workers, functions and objects by name,
// futures, and references to values of other workers. The comments of shmbroker_remote.h hold for what is not said
// here. Arguments and results are what spawn.hpp and msgpack-cxx can pack, and references, and Bytes, also within
// lists. It needs msgpack-cxx and exceptions.
//
//     shmbroker::remote::init("worker0", 0, 2);                        // MASTER_ADDR, MASTER_PORT
//     int three = shmbroker::remote::rpc_sync<int>("worker1", "add", 1, 2);
//     auto counter = shmbroker::remote::remote<Counter>("worker1", "Counter", 40);
//     counter.rpc_sync<int>("Counter.add", 2);
//     shmbroker::remote::shutdown();
#if __cplusplus < 202002L
#error "shmbroker/remote.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_remote.h)"
#elif !defined(SHMBROKER_REMOTE_HPP)
#define SHMBROKER_REMOTE_HPP

#include "remote_values.hpp"

#if SHMBROKER_EXCEPTIONS

namespace shmbroker::remote {

// ---------------------------------------------------------------- futures

namespace detail {

// The longest time of a wait. A call that has a limit of its own needs none here.
inline std::int64_t limit_of(World& world, Timeout timeout, bool has_limit) {
  if (timeout.nanoseconds() != SHMB_DEFAULT_TIMEOUT) return timeout.nanoseconds();
  return has_limit ? SHMB_FOREVER : shmb_remote_get_timeout(world.c());
}

}  // namespace detail

/// The outcome of a call, shared by its copies. Ownership: all copies own it together, and its world. Lifetime: it may
/// outlive the world; what is not done then fails with closed. Threads: any, at the same time.
template <class T>
class Future {
 public:
  using Value = detail::Stored<T>;

  /// One that the program completes itself, by set_result or set_exception. Throws Error with closed if the process is
  /// in no world.
  Future() : Future(detail::world(), false) {}

  /// Whether it has a value or has failed. Throws nothing but what a mutex does.
  bool done() const {
    const std::lock_guard lock(state_->mutex);
    return state_->value || state_->error;
  }
  /// The value. A wait serves meanwhile, as all waits do. By default it takes as long as the call may take. A future
  /// that the program completes itself has the time of calls by default (set_timeout, 60 s at first). Throws what made
  /// the call fail, and Error with deadline, which is also that of a wait that was too short, closed or session_lost.
  T wait(Timeout timeout = {}) const {
    await(timeout);
    if constexpr (std::is_void_v<T>) (void)stored();
    else return stored();
  }
  /// The value of a future that is done, as often as one likes. Of types that only move the first call takes it. Throws
  /// what made the call fail.
  Value stored() const {
    const std::lock_guard lock(state_->mutex);
    if (state_->error) std::rethrow_exception(state_->error);
    if constexpr (std::is_copy_constructible_v<Value>) return *state_->value;
    else return std::move(*state_->value);
  }
  /// Calls `call(future)` when it is done: now, or in a thread that serves. The result of `call`, or what it throws, is
  /// that of the next future. Throws std::bad_alloc.
  template <class Call>
  auto then(Call call) const {
    using U = std::invoke_result_t<Call, Future>;
    Future<U> next(state_->world, state_->has_limit);
    when_done([call = std::move(call), next](const Future& self) mutable {
      try {
        if constexpr (std::is_void_v<U>) {
          call(self);
          next.set_result();
        } else {
          next.set_result(call(self));
        }
      } catch (...) {
        next.set_exception(std::current_exception());
      }
    });
    return next;
  }
  /// Calls `call(future)` when it is done: now, or in a thread that serves, where its exceptions are dropped. Throws
  /// what `call` throws now.
  template <class Call>
  void when_done(Call call) const {
    {
      const std::lock_guard lock(state_->mutex);
      if (!state_->value && !state_->error) {
        state_->callbacks.push_back([call = std::move(call), state = std::weak_ptr(state_)]() mutable {
          if (auto alive = state.lock()) call(Future(alive));
        });
        return;
      }
    }
    call(*this);
  }
  /// Completes the future, with a value or with an error. Throws std::logic_error if it is complete already.
  template <class... V>
  void set_result(V&&... value) const {
    finish([&] { state_->value.emplace(std::forward<V>(value)...); });
  }
  void set_exception(std::exception_ptr error) const {
    finish([&] { state_->error = std::move(error); });
  }

  /// For the library. Throws Error.
  static Future adopt(std::shared_ptr<detail::World> world, shmb_future* raw, const char* what) {
    const detail::FutureHandle handle(raw);
    Future out(std::move(world), true);
    auto* context = new std::pair<Future, std::string>(out, what);
    shmb_error error;
    if (shmb_future_then(raw, &Future::arrived, context, &error) != SHMB_OK) {
      delete context;
      throw Error(error);
    }
    return out;
  }
  /// `has_limit`: it ends by itself, by a call's deadline where nothing else ends it. Throws std::bad_alloc.
  Future(std::shared_ptr<detail::World> world, bool has_limit)
      : state_(std::make_shared<State>(std::move(world), has_limit)) {}
  /// Whether a call's deadline ends it.
  bool has_limit() const noexcept { return state_->has_limit; }
  /// Waits without taking the value. Throws Error with deadline, closed or session_lost.
  void await(Timeout timeout) const {
    shmb_error error;
    const std::int64_t limit = detail::limit_of(*state_->world, timeout, has_limit());
    const auto is_done = [](void* self) { return static_cast<const Future*>(self)->done() ? 1 : 0; };
    detail::check(shmb_remote_wait(state_->world->c(), is_done, const_cast<Future*>(this), limit, &error), error);
  }

 private:
  template <class U>
  friend class Future;
  struct State {
    State(std::shared_ptr<detail::World> of, bool ends) : world(std::move(of)), has_limit(ends) {}
    const std::shared_ptr<detail::World> world;
    const bool has_limit;
    std::mutex mutex;
    std::optional<Value> value;
    std::exception_ptr error;
    std::vector<std::function<void()> > callbacks;
  };
  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {}

  template <class Set>
  void finish(Set&& set) const {
    std::vector<std::function<void()> > callbacks;
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->value || state_->error) throw std::logic_error("a future can be completed once only");
      set();
      callbacks.swap(state_->callbacks);
    }
    for (auto& one : callbacks) {
      try {
        one();
      } catch (...) {  // of when_done(): nobody is there to be told
      }
    }
    shmb_remote_notify(state_->world->c());
  }
  static void arrived(void* context, shmb_future* raw) {
    const std::unique_ptr<std::pair<Future, std::string> > it(static_cast<std::pair<Future, std::string>*>(context));
    shmb_content* content = nullptr;
    shmb_error error;
    try {
      if (shmb_future_wait(raw, SHMB_NO_WAIT, &content, &error) != SHMB_OK) detail::throw_future(raw, error);
      it->first.set_result(detail::value_of<T>(content, it->second.c_str()));
    } catch (...) {
      try {
        it->first.set_exception(std::current_exception());
      } catch (const std::logic_error&) {  // the program has completed it itself
      }
    }
  }
  std::shared_ptr<State> state_;
};

/// All results in order. The first failure is thrown as soon as it is there. The default is that of wait(). If the
/// program completes one of them, it is the time that calls may take by default. Throws what made a call fail, and
/// Error with deadline, closed or session_lost.
template <class T>
auto wait_all(const std::vector<Future<T> >& futures, Timeout timeout = {}) {
  const auto world = detail::world();
  const auto ready = [&]() -> bool {
    bool all = true;
    for (const Future<T>& future : futures) {
      if (!future.done()) {
        all = false;
        continue;
      }
      if constexpr (std::is_copy_constructible_v<detail::Stored<T> >) (void)future.stored();
    }
    return all;
  };
  struct Asked {
    const decltype(ready)& ask;
    std::exception_ptr thrown;
  } asked{ready, nullptr};
  const auto ask = [](void* context) {
    auto& it = *static_cast<Asked*>(context);
    try {
      return it.ask() ? 1 : 0;
    } catch (...) {
      it.thrown = std::current_exception();
      return 1;
    }
  };
  const bool limited = std::ranges::all_of(futures, [](const Future<T>& future) { return future.has_limit(); });
  shmb_error error;
  detail::check(shmb_remote_wait(world->c(), ask, &asked, detail::limit_of(*world, timeout, limited), &error), error);
  if (asked.thrown) std::rethrow_exception(asked.thrown);
  if constexpr (!std::is_void_v<T>) {
    std::vector<T> all;
    for (const Future<T>& future : futures) all.push_back(future.stored());
    return all;
  }
}

// ---------------------------------------------------------------- references

template <class T>
class Remote;

/// Methods at the owner of a reference, with a timeout of their own: reference.within(30s).rpc_sync<int>("Counter.add",
/// 2). Ownership: one reference of this worker. Lifetime: as that. Threads: any.
template <class T>
class Within {
 public:
  /// For a reference and a time. Throws nothing.
  Within(Remote<T> reference, Timeout timeout) : reference_(std::move(reference)), timeout_(timeout) {}
  /// Calls a method and gives its result, now or as a future. Throws what Remote::rpc_sync() throws.
  template <class R, class... A>
  R rpc_sync(std::string_view method, const A&... arguments) const {
    return rpc_async<R>(method, arguments...).wait();
  }
  template <class R, class... A>
  Future<R> rpc_async(std::string_view method, const A&... arguments) const {
    return reference_.template call<R>(timeout_, method, arguments...);
  }
  /// Keeps the result at the owner. A value that has not been made when the time is over has failed for good, for every
  /// worker. Throws what Remote::remote() throws.
  template <class R, class... A>
  Remote<R> remote(std::string_view method, const A&... arguments) const {
    return reference_.template create<R>(timeout_, method, arguments...);
  }

 private:
  Remote<T> reference_;
  Timeout timeout_;
};

/// A reference to a value of type T, which lives at its owner. Ownership: copies share one reference of this worker,
/// which keeps the value. Lifetime: it may outlive the world; calls then throw. Threads: any, at the same time.
template <class T>
class Remote {
 public:
  /// To no value.
  Remote() = default;
  /// To a value of this worker. Throws Error with closed, or if the process is in no world.
  explicit Remote(detail::Stored<T> value)
    requires(!std::is_void_v<T>)
      : world_(detail::world()) {
    constexpr bool fetched = !std::is_class_v<T> || detail::Fetched<T> ||
                             (detail::inside::is_plain<T> &&
                              (requires { typename T::value_type; } || requires { std::tuple_size<T>::value; }));
    auto object = std::make_unique<detail::ObjectOf<T, fetched> >(std::move(value));
    shmb_reference* raw = nullptr;
    shmb_error error;
    detail::check(
        shmb_remote_own(world_->c(), object.get(), detail::inside::demangled(typeid(T).name()).c_str(), &raw, &error),
        error);
    (void)object.release();
    adopt(raw);
  }
  /// For the library. Throws std::bad_alloc.
  Remote(std::shared_ptr<detail::World> world, shmb_reference* adopted) : world_(std::move(world)) { adopt(adopted); }
  /// Whether it refers to a value.
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  /// The value, from wherever it is. A passed deadline ends this call only; the next one may have it. Throws Error with
  /// owner_gone, closed or deadline, and what the creation of the value threw.
  T to_here(Timeout timeout = {}) const {
    if (is_owner()) {
      if constexpr (std::is_void_v<T>) (void)local(timeout);
      else if constexpr (std::is_copy_constructible_v<T>) return local_value(timeout);
      else throw std::logic_error("a value that cannot be copied is used by local_value() at its owner");
    } else {
      if constexpr (std::is_void_v<T>) to_here_async(timeout).wait();
      else return to_here_async(timeout).wait();
    }
  }
  /// The same as a future. Throws Error with owner_gone or closed.
  Future<T> to_here_async(Timeout timeout = {}) const {
    shmb_future* raw = nullptr;
    shmb_error error;
    if (shmb_reference_fetch(c(), timeout.nanoseconds(), &raw, &error) != SHMB_OK) throw_failed(error);
    return Future<T>::adopt(world_, raw, "the value of a reference");
  }
  /// At the owner: the value itself, as long as there is a reference here. It waits until the value is made. Throws
  /// Error with invalid (this worker is not the owner) or deadline, std::invalid_argument for a value of another type,
  /// and what its creation threw.
  std::add_lvalue_reference_t<T> local_value(Timeout timeout = {}) const
    requires(!std::is_void_v<T>)
  {
    detail::Object* const object = local(timeout);
    if (object->type != typeid(T))
      throw std::invalid_argument("the value is of type " + detail::inside::demangled(object->type.name()) + ", not " +
                                  detail::inside::demangled(typeid(T).name()));
    return *static_cast<T*>(object->address());
  }
  /// The facts of the reference that this worker knows, as a whole or one by one: whether it is the owner's, whether
  /// the owner has confirmed it, who owns it. Throws Error; std::logic_error if it is empty.
  shmb_reference_info info() const {
    shmb_reference_info info{};
    info.size = sizeof info;
    shmb_error error;
    detail::check(shmb_reference_get_info(c(), &info, &error), error);
    return info;
  }
  bool is_owner() const { return info().is_owner != 0; }
  bool confirmed_by_owner() const { return info().confirmed != 0; }
  WorkerInfo owner() const {
    const shmb_reference_info it = info();
    return {it.owner, it.owner_name};
  }
  std::string owner_name() const { return info().owner_name; }
  /// How far the creation of the value is.
  enum class State : std::uint32_t {
    registered = SHMB_REFERENCE_REGISTERED,
    ready = SHMB_REFERENCE_READY,
    failed = SHMB_REFERENCE_FAILED,
  };
  /// The state as this worker knows it. Throws as info().
  State state() const { return static_cast<State>(info().state); }
  /// When its value is made, of a reference that remote() gave. Throws Error with not_found for other references.
  Future<void> created() const {
    shmb_future* raw = nullptr;
    shmb_error error;
    detail::check(shmb_reference_created(c(), &raw, &error), error);
    return Future<void>::adopt(world_, raw, "a creation");
  }
  /// The type's name at the owner, now or as a future. It is asked once. Throws Error with owner_gone, closed or
  /// deadline.
  std::string type(Timeout timeout = {}) const { return type_async(timeout).wait(); }
  Future<std::string> type_async(Timeout timeout = {}) const {
    shmb_future* raw = nullptr;
    shmb_error error;
    if (shmb_reference_type(c(), timeout.nanoseconds(), &raw, &error) != SHMB_OK) throw_failed(error);
    const detail::FutureHandle handle(raw);
    Future<std::string> out(world_, true);
    auto* context = new Future<std::string>(out);
    const auto told = [](void* given, shmb_future* future) {
      const std::unique_ptr<Future<std::string> > it(static_cast<Future<std::string>*>(given));
      shmb_content* content = nullptr;
      shmb_error why;
      try {
        if (shmb_future_wait(future, SHMB_NO_WAIT, &content, &why) != SHMB_OK) detail::throw_future(future, why);
        it->set_result(std::string(static_cast<const char*>(shmb_content_data(content)), shmb_content_length(content)));
      } catch (...) {
        it->set_exception(std::current_exception());
      }
    };
    if (shmb_future_then(raw, told, context, &error) != SHMB_OK) {
      delete context;
      throw Error(error);
    }
    return out;
  }

  /// Calls a method at the owner, once the value is made, and gives its result. Throws what the method threw, and Error
  /// with no_function, worker_gone, owner_gone, closed, deadline or session_lost.
  template <class R, class... A>
  R rpc_sync(std::string_view method, const A&... arguments) const {
    return call<R>({}, method, arguments...).wait();
  }
  /// The same as a future. Throws Error if it could not be sent.
  template <class R, class... A>
  Future<R> rpc_async(std::string_view method, const A&... arguments) const {
    return call<R>({}, method, arguments...);
  }
  /// Keeps the result at the owner, and gives a reference to it at once. Throws Error if it could not be sent.
  template <class R, class... A>
  Remote<R> remote(std::string_view method, const A&... arguments) const {
    return create<R>({}, method, arguments...);
  }
  /// The same with a time of their own instead of that of calls. Each throws as said above.
  Within<T> within(Timeout timeout) const { return {*this, timeout}; }
  template <class R, class... A>
  Remote<R> create(Timeout timeout, std::string_view method, const A&... arguments) const;
  template <class R, class... A>
  Future<R> call(Timeout timeout, std::string_view method, const A&... arguments) const;

  /// The reference as torch prints it. Throws as info().
  std::string text() const {
    const shmb_reference_info it = info();
    return torch_words::reference_text(it.is_owner != 0, it.creator, it.number, it.fork_creator, it.fork);
  }
  friend std::ostream& operator<<(std::ostream& out, const Remote& reference) { return out << reference.text(); }

  /// For the library: how it travels. Throws std::logic_error outside of a call.
  void pack_value(detail::inside::Packer& packer) const {
    if (detail::packing == nullptr) throw std::logic_error(torch_words::kCannotPickle);
    detail::pack_number(packer, detail::kReferenceExtension, detail::packing->references.size());
    detail::packing->references.push_back(c());
    detail::packing->alive.push_back(handle_);
  }
  /// For the library. Throws Error.
  void unpack_value(detail::inside::Reader& in) {
    const std::size_t number = detail::take_number(in, detail::kReferenceExtension);
    shmb_reference* raw = nullptr;
    shmb_error error;
    detail::check(shmb_content_take_reference(detail::unpacking, number, &raw, &error), error);
    world_ = detail::world();
    adopt(raw);
  }
  /// The C handle, which this object keeps. Throws std::logic_error if it is empty.
  shmb_reference* c() const {
    if (!handle_) throw std::logic_error("an empty reference");
    return handle_.get();
  }

 private:
  void adopt(shmb_reference* raw) { handle_ = std::shared_ptr<shmb_reference>(raw, detail::HandleCloser()); }
  [[noreturn]] void throw_failed(const shmb_error& error) const {
    shmb_remote_failure failure{};
    failure.size = sizeof failure;
    if (shmb_reference_failure(c(), &failure, nullptr) == SHMB_OK) detail::throw_failure(failure, error);
    throw Error(error);
  }
  detail::Object* local(Timeout timeout) const {
    void* object = nullptr;
    shmb_error error;
    if (shmb_reference_local(c(), timeout.nanoseconds(), &object, nullptr, &error) != SHMB_OK) throw_failed(error);
    if (object == nullptr) throw std::invalid_argument("the value was made by a program in C: it is bytes");
    return static_cast<detail::Object*>(object);
  }
  std::shared_ptr<detail::World> world_;
  std::shared_ptr<shmb_reference> handle_;
};

// ---------------------------------------------------------------- calls

/// Calls a function by name at a worker, this one among them. Throws Error with not_found (no such worker),
/// worker_gone, closed, limit or deadline if it could not be sent. The future has what happened later.
template <class R, class... A>
Future<R> rpc_async(const To& to, std::string_view function, const A&... arguments) {
  const auto world = detail::world();
  const auto parcel = detail::Parcel::of_arguments(arguments...);
  const shmb_payload payload = parcel.c();
  shmb_future* raw = nullptr;
  shmb_error error;
  detail::check(shmb_remote_call(world->c(), to.rank(world->c()), detail::inside::CText(function).get(), &payload, 0,
                                 to.timeout(), &raw, &error),
                error);
  return Future<R>::adopt(world, raw, detail::inside::joined({"the result of \"", function, "\""}).c_str());
}
/// Calls a function and waits for its result. Throws what the function threw, and Error with no_function, worker_gone,
/// owner_gone, closed, deadline or session_lost.
template <class R, class... A>
R rpc_sync(const To& to, std::string_view function, const A&... arguments) {
  return rpc_async<R>(to, function, arguments...).wait();
}
/// Runs a function, or makes an object of a registered class, at a worker, and gives a reference to it at once. Throws
/// Error if it could not be sent, as rpc_async().
template <class T, class... A>
Remote<T> remote(const To& to, std::string_view function, const A&... arguments) {
  const auto world = detail::world();
  const auto parcel = detail::Parcel::of_arguments(arguments...);
  const shmb_payload payload = parcel.c();
  shmb_reference* raw = nullptr;
  shmb_error error;
  detail::check(shmb_remote_create(world->c(), to.rank(world->c()), detail::inside::CText(function).get(), &payload, 0,
                                   to.timeout(), &raw, &error),
                error);
  return Remote<T>(world, raw);
}

/// The bodies of two functions of Remote. They throw as said there.
template <class T>
template <class R, class... A>
Future<R> Remote<T>::call(Timeout timeout, std::string_view method, const A&... arguments) const {
  const auto parcel = detail::Parcel::of_arguments(*this, arguments...);
  const shmb_payload payload = parcel.c();
  shmb_future* raw = nullptr;
  shmb_error error;
  if (shmb_remote_call(world_->c(), info().owner, detail::inside::CText(method).get(), &payload, SHMB_CALL_ON_OBJECT,
                       timeout.nanoseconds(), &raw, &error) != SHMB_OK)
    throw_failed(error);
  return Future<R>::adopt(world_, raw, detail::inside::joined({"the result of \"", method, "\""}).c_str());
}
/// As above. Throws Error.
template <class T>
template <class R, class... A>
Remote<R> Remote<T>::create(Timeout timeout, std::string_view method, const A&... arguments) const {
  const auto parcel = detail::Parcel::of_arguments(*this, arguments...);
  const shmb_payload payload = parcel.c();
  shmb_reference* raw = nullptr;
  shmb_error error;
  if (shmb_remote_create(world_->c(), info().owner, detail::inside::CText(method).get(), &payload, SHMB_CALL_ON_OBJECT,
                         timeout.nanoseconds(), &raw, &error) != SHMB_OK)
    throw_failed(error);
  return Remote<R>(world_, raw);
}

// ---------------------------------------------------------------- the world

/// How a worker joins its world.
struct InitOptions {
  unsigned threads = 0;    // that serve; with none, calls of others are run while this worker waits, or serves
  Text address{};          // HOST:PORT; empty: MASTER_ADDR and MASTER_PORT
  Text socket{};           // the broker's; empty: looked for
  Timeout timeout{};       // until all have come; default: 60 s
  Timeout call_timeout{};  // of calls that name none; default: 60 s
};

/// Joins the world; rank -1 and world_size 0 stand for the variables RANK and WORLD_SIZE. One world at a time. It
/// returns when all workers have joined. Throws std::logic_error if this process is in a world; Error with invalid,
/// exists (the rank or the name is taken), world_taken, not_ready, worker_gone, deadline (the sentence says who is
/// missing), limit, local_only or no_broker.
inline void init(std::string_view name, int rank = -1, int world_size = 0, const InitOptions& options = {}) {
  detail::Current& current = detail::current();
  std::shared_ptr<detail::World> before;
  {
    const std::lock_guard lock(current.mutex);
    before = current.world;
  }
  if (before) {
    const auto at_once = [](void*) { return 1; };
    if (shmb_remote_wait(before->c(), at_once, nullptr, 0, nullptr) != SHMB_E_FORKED)
      throw std::logic_error("this process is in a world already: call shmbroker::remote::shutdown first");
    const std::lock_guard lock(current.mutex);
    current.world.reset();
    (void)new std::shared_ptr<detail::World>(std::move(before));  // the parent's, not ours to end
  }
  shmb_remote_options c{};
  c.size = sizeof c;
  const detail::inside::CText text(name);
  c.name = text.get();
  c.address = detail::inside::or_null(options.address);
  c.rank = rank;
  c.world_size = world_size;
  c.threads = options.threads;
  c.socket = detail::inside::or_null(options.socket);
  c.timeout_ns = options.timeout.nanoseconds();
  c.call_timeout_ns = options.call_timeout.nanoseconds();
  c.request = detail::serve_request;
  c.drop = detail::drop_object;
  shmb_remote* raw = nullptr;
  shmb_error error;
  const detail::Joining until_it_is_known;
  detail::check(shmb_remote_init(&c, &raw, &error), error);
  auto made = std::make_shared<detail::World>(raw);
  const std::lock_guard lock(current.mutex);
  current.world = std::move(made);
}

/// How a worker leaves its world. No other thread may be in to_here() or local_value() at the owner then, or use what
/// they gave: the objects go.
struct ShutdownOptions {
  bool graceful = true;
  Timeout timeout{};           // default: 5 minutes
  bool end_references = true;  // this worker's references are given up first
  bool ignore_leaks = true;    // what is left then is only counted
};
/// Leaves the world, also if it throws, and gives how many values here others still refer to. A graceful one serves
/// until all workers have come here and no call is under way. Throws Error with deadline (the sentence says who has not
/// come), leaking, session_lost or closed.
inline std::uint32_t shutdown(const ShutdownOptions& options = {}) {
  const auto world = detail::world();
  shmb_remote_shutdown_options c{};
  c.size = sizeof c;
  c.local = options.graceful ? 0 : 1;
  c.keep_references = options.end_references ? 0 : 1;
  c.report_leaks = options.ignore_leaks ? 0 : 1;
  c.timeout_ns = options.timeout.nanoseconds();
  std::uint32_t leaks = 0;
  shmb_error error;
  const int status = shmb_remote_shutdown(world->c(), &c, &leaks, &error);
  {
    detail::Current& current = detail::current();
    const std::lock_guard lock(current.mutex);
    if (current.world == world) current.world.reset();
  }
  detail::check(status, error);
  return leaks;
}

/// Runs what others ask until the time is over (true) or the world was shut down (false). Without limit by default.
/// Throws Error with session_lost.
inline bool serve(Timeout timeout = {}) {
  shmb_error error;
  const int status = shmb_remote_serve(detail::world()->c(), timeout.nanoseconds(), &error);
  if (status == SHMB_E_CLOSED) return false;
  detail::check(status, error);
  return true;
}

/// The rank of this worker, and the number of workers. Each throws Error if the process is in no world.
inline int rank() { return shmb_remote_rank(detail::world()->c()); }
inline int world_size() { return shmb_remote_world_size(detail::world()->c()); }
/// A worker by name or rank; this one; all. Throws Error with not_found, or if the process is in no world.
inline WorkerInfo worker_info(const To& to) {
  const auto world = detail::world();
  shmb_worker worker{};
  worker.size = sizeof worker;
  shmb_error error;
  detail::check(shmb_remote_worker(world->c(), to.rank(world->c()), nullptr, &worker, &error), error);
  return {worker.rank, worker.name};
}
inline WorkerInfo worker_info() { return worker_info(rank()); }
inline std::vector<WorkerInfo> worker_infos() {
  std::vector<WorkerInfo> all;
  for (int i = 0; i < world_size(); ++i) all.push_back(worker_info(i));
  return all;
}
/// The timeout of later calls that name none; left out: 60 s. Throws Error with invalid for no_wait().
inline void set_timeout(Timeout timeout) {
  shmb_error error;
  detail::check(shmb_remote_set_timeout(detail::world()->c(), timeout.nanoseconds(), &error), error);
}
/// How many values, references and calls there are; it asks the broker. Throws Error with closed.
inline shmb_remote_counters counters() {
  shmb_remote_counters counters{};
  counters.size = sizeof counters;
  shmb_error error;
  detail::check(shmb_remote_get_counters(detail::world()->c(), &counters, &error), error);
  return counters;
}

}  // namespace shmbroker::remote

template <>
struct std::hash<shmbroker::remote::WorkerInfo> {
  std::size_t operator()(const shmbroker::remote::WorkerInfo& info) const noexcept {
    return std::hash<int>()(info.rank);
  }
};

#endif
#endif
