// SPDX-License-Identifier: Apache-2.0
// A heap in a region: Boost.Interprocess' allocator, containers and named objects, for processes that trust one
// another. Needs Boost headers and exceptions; every process must be built with the same Boost.
//
// Guarantee: the kill of a process at any instruction makes no other process hang. If it held the heap's lock to change
// something, the heap is poisoned: every later call in every process fails with Status::poisoned. The rest can be
// read by Salvage, which takes no lock and walks no structure that may be half-changed. All pointers in the heap are
// offsets.
//
// Each call takes the lock for itself. Code that works on what it found (a push_back, a loop over a map) must hold the
// lock meanwhile: `auto guard = heap.lock();`, or lock_to_read(), whose holder may die without harm.
#if __cplusplus < 202002L
#error "shmbroker/heap.hpp needs C++20: compile with -std=c++20 or later"
#elif !defined(SHMBROKER_HEAP_HPP)
#define SHMBROKER_HEAP_HPP

#include <cxxabi.h>
#include <sys/stat.h>

#include <boost/container/map.hpp>
#include <boost/container/scoped_allocator.hpp>
#include <boost/container/set.hpp>
#include <boost/container/string.hpp>
#include <boost/container/vector.hpp>
#include <boost/interprocess/indexes/null_index.hpp>
#include <boost/interprocess/managed_external_buffer.hpp>
#include <boost/interprocess/mem_algo/rbtree_best_fit.hpp>
#include <boost/interprocess/offset_ptr.hpp>
#include <boost/unordered_map.hpp>
#include <boost/version.hpp>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>

#include "heap_lock.hpp"

namespace shmbroker {

namespace heap {

namespace detail {

namespace bip = boost::interprocess;
using Buffer = bip::basic_managed_external_buffer<char, bip::rbtree_best_fit<robust_mutex_family>, bip::null_index>;
using Manager = Buffer::segment_manager;

inline constexpr std::uint64_t kMagic = 0x3170'6165'682d'6d68;  // "hm-heap1"
inline constexpr std::uint64_t kMaking = ~kMagic;               // written first, by the maker
inline constexpr std::size_t kHeaderBytes = 1024, kBuckets = 64, kMaxName = 255;

// The start of the region; Boost's part follows.
struct Header {
  std::atomic<std::uint64_t> magic;  // kMagic once the lock can be used
  std::uint32_t boost, pointer_bytes, mutex_bytes;
  std::atomic<std::uint32_t> ready;  // 0 until the heap can be used
  std::uint64_t bytes;               // of the region
  std::uint64_t pid_namespace;       // 0: not known
  std::int64_t lock_timeout_ns;
  std::uint64_t manager;            // where Boost's part begins
  std::atomic<std::uint64_t> lost;  // bytes that could not be given back
  alignas(64) robust_mutex lock;
  // Chains of named objects: offsets of entries, 0 ends. Each change is one store, so they can be read at any time.
  alignas(64) std::atomic<std::uint64_t> buckets[kBuckets];
};
static_assert(sizeof(Header) <= kHeaderBytes);

// A named object. Its name and its type's name follow the struct; the object is in another block.
struct Entry {
  std::atomic<std::uint64_t> next;
  std::uint64_t object, object_bytes;
  std::uint32_t name_length, type_length;
};

// The lock identifies its holder by a thread number. Two PID namespaces give one number to different threads.
inline std::uint64_t pid_namespace() noexcept {
  struct stat seen{};
  return ::stat("/proc/self/ns/pid", &seen) == 0 ? seen.st_ino : 0;
}

inline Manager& manager_of(Header& header) noexcept {
  return *reinterpret_cast<Manager*>(reinterpret_cast<std::byte*>(&header) + header.manager);
}

// Runs a function of the heap under its lock.
class Locked {
 public:
  Locked(Header& header, Intent intent) : header_(header), intent_(intent) {
    header.lock.lock(intent, header.lock_timeout_ns);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() { header_.lock.unlock(intent_); }

 private:
  Header& header_;
  Intent intent_;
};

inline Error no_room(Header& header, std::uint64_t asked) noexcept {
  const auto free = static_cast<std::uint64_t>(manager_of(header).get_free_memory());
  shmb_error error = failure(Status::limit,
                             "the heap has no free block of %llu bytes: %llu of its %llu bytes are free, perhaps in "
                             "pieces; destroy something, or make a larger heap",
                             static_cast<unsigned long long>(asked), static_cast<unsigned long long>(free),
                             static_cast<unsigned long long>(header.bytes))
                         .detail();
  error.slot = SHMB_SLOT_BYTES;
  error.limit = header.bytes;
  error.used = header.bytes - free;
  error.asked = asked;
  return Error(error);
}

inline void* allocate(Header& header, std::size_t bytes, std::size_t alignment) {
  const Locked locked(header, Intent::change);
  Manager& manager = manager_of(header);
  SHMBROKER_HEAP_STEP();
  void* block = alignment <= 16 ? manager.allocate(bytes, std::nothrow)
                                : manager.allocate_aligned(bytes, alignment, std::nothrow);
  SHMBROKER_HEAP_STEP();
  if (block == nullptr) throw no_room(header, bytes);
  return block;
}

// Destructors call it, so it cannot fail: if the lock cannot be taken, the block is lost, and counted.
inline void deallocate(Header& header, void* block, std::size_t bytes) noexcept {
  try {
    const Locked locked(header, Intent::change);
    SHMBROKER_HEAP_STEP();
    manager_of(header).deallocate(block);
    SHMBROKER_HEAP_STEP();
  } catch (...) {
    header.lost.fetch_add(bytes, std::memory_order_relaxed);
  }
}

// Turns exceptions of the heap into a Result. Exceptions of the user's constructors pass through.
template <class T, class Call>
Result<T> mapped(Call&& call) {
  try {
    return call();
  } catch (const Error& error) {
    return error;
  } catch (const bip::interprocess_exception& error) {
    return failure(Status::system, "the heap: %s", error.what());
  }
}

// How often a mangled name refers to a part of itself ("S0_", "T_"). Each reference may double the length of the type's
// text.
inline std::size_t references_in(std::string_view mangled) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < mangled.size(); ++at) {
    if (mangled[at] != 'S' && mangled[at] != 'T') continue;
    std::size_t end = at + 1;
    while (end < mangled.size() &&
           ((mangled[end] >= '0' && mangled[end] <= '9') || (mangled[end] >= 'A' && mangled[end] <= 'Z')))
      ++end;
    count += end < mangled.size() && mangled[end] == '_';
  }
  return count;
}

// A type as its source has it, for sentences. A long one is cut between names. A name that a peer may have written
// stays mangled if it refers to itself too often: its text could be larger than memory.
enum class Written { here, by_a_peer };
inline std::string type_text(std::string_view mangled, Written written) {
  constexpr std::size_t kMost = 140, kMostMangled = 4096, kMostReferences = 8;
  std::string text(mangled.substr(0, kMostMangled));
  int status = 0;
  const bool bounded = written == Written::here || references_in(text) <= kMostReferences;
  if (char* const plain = bounded ? abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status) : nullptr) {
    const std::unique_ptr<char, void (*)(void*)> freed(plain, &std::free);
    text = plain;
  }
  if (text.size() <= kMost) return text;
  const auto in_name = [&](std::size_t at) {
    const char c = text[at];
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  std::size_t end = kMost;
  while (end > 0 && in_name(end - 1) && in_name(end)) --end;
  if (end == 0) end = kMost;  // all one name
  text.resize(end);
  return text += "...";
}

// The chains, over bytes that any process may have written: every offset is checked, and every walk ends.
class Catalogue {
 public:
  Catalogue(const std::byte* base, std::uint64_t bytes) noexcept : base_(base), bytes_(bytes) {}

  bool inside(std::uint64_t offset, std::uint64_t length) const noexcept {
    return offset <= bytes_ && length <= bytes_ - offset;
  }
  bool inside(const void* pointer, std::uint64_t length) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer), start = reinterpret_cast<std::uintptr_t>(base_);
    return address >= start && inside(address - start, length);
  }
  // Calls visit(entry, name, type, link to the entry) until it returns true. False: a chain is malformed.
  template <class Visit>
  bool walk(std::size_t bucket, Visit&& visit) const {
    const std::atomic<std::uint64_t>* link = &reinterpret_cast<const Header*>(base_)->buckets[bucket];
    for (std::uint64_t steps = bytes_ / sizeof(Entry);; --steps) {
      const std::uint64_t offset = link->load(std::memory_order_acquire);
      if (offset == 0) return true;
      if (steps == 0 || offset % alignof(Entry) != 0 || !inside(offset, sizeof(Entry))) return false;
      const auto* entry = reinterpret_cast<const Entry*>(base_ + offset);
      const std::uint64_t name = entry->name_length, type = entry->type_length;
      if (!inside(offset + sizeof(Entry), name + type) || !inside(entry->object, entry->object_bytes)) return false;
      const char* text = reinterpret_cast<const char*>(entry + 1);
      if (visit(*entry, std::string_view(text, name), std::string_view(text + name, type), *link)) return true;
      link = &entry->next;
    }
  }
  static std::size_t bucket_of(std::string_view name) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: the same in every process, as std::hash need not be
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return static_cast<std::size_t>(hash >> 58);
  }
  const std::byte* base() const noexcept { return base_; }

  // The object's address if it is of type T. nullptr: no object has the name.
  template <class T>
  const T* find(std::string_view name) const {
    const std::byte* object = find(name, typeid(T).name(), sizeof(T));
    if (reinterpret_cast<std::uintptr_t>(object) % alignof(T) != 0) throw broken();
    return reinterpret_cast<const T*>(object);
  }
  const std::byte* find(std::string_view name, std::string_view type, std::uint64_t bytes) const {
    const std::byte* found = nullptr;
    const bool sound = walk(bucket_of(name), [&](const Entry& entry, std::string_view n, std::string_view t, auto&) {
      if (n != name) return false;
      if (t != type || entry.object_bytes != bytes)
        throw failure(Status::invalid, "'%.*s' is of type %s, not %s", int(std::min(n.size(), kMaxName)), n.data(),
                      type_text(t, Written::by_a_peer).c_str(), type_text(type, Written::here).c_str());
      found = base_ + entry.object;
      return true;
    });
    if (!sound) throw broken();
    return found;
  }
  static Error broken() noexcept {
    return failure(Status::broken, "the heap's list of names is broken: a process has written over it");
  }

 private:
  const std::byte* base_;
  std::uint64_t bytes_;
};

inline Result<void> check_name(std::string_view name) noexcept {
  if (name.empty() || name.size() > kMaxName)
    return failure(Status::invalid, "the name of an object in a heap has 1 to %zu bytes, this one %zu", kMaxName,
                   name.size());
  return {};
}
inline Error no_such(std::string_view name) noexcept {
  return failure(Status::not_found, "the heap has no object '%.*s'", int(std::min(name.size(), kMaxName)), name.data());
}

}  // namespace detail

// Whether a type may lie in a heap, as far as its name shows. A type with std::allocator among its arguments
// (std::string and all std containers) keeps addresses of one process. It looks at names alone: T may be incomplete.
template <class T>
inline constexpr bool fits = true;
template <class T>
inline constexpr bool fits<const T> = fits<T>;
template <class T>
inline constexpr bool fits<std::allocator<T> > = false;
template <template <class...> class C, class... A>
inline constexpr bool fits<C<A...> > = (fits<A> && ...);

/// The allocator of a heap. A plain value: it refers to the heap, whose handle must outlive it. Works with any
/// container that keeps its allocator's `pointer`, as those of Boost.Container and Boost.Unordered do.
template <class T>
class allocator {
  static_assert(fits<T>,
                "std::string and std containers keep addresses of one process: in a heap use heap::string, "
                "heap::vector, heap::map, heap::set and heap::unordered_map");

 public:
  using value_type = T;
  using pointer = boost::interprocess::offset_ptr<T>;
  using const_pointer = boost::interprocess::offset_ptr<const T>;
  using void_pointer = boost::interprocess::offset_ptr<void>;
  using const_void_pointer = boost::interprocess::offset_ptr<const void>;
  using reference = std::add_lvalue_reference_t<T>;
  using const_reference = std::add_lvalue_reference_t<const T>;
  using difference_type = std::ptrdiff_t;
  using size_type = std::size_t;
  template <class U>
  struct rebind {
    using other = allocator<U>;
  };

  /// For the heap with this header; from an allocator of another type for the same heap.
  explicit allocator(detail::Header& header) noexcept : header_(&header) {}
  template <class U>
  allocator(const allocator<U>& other) noexcept : header_(other.header()) {}

  /// Takes memory for `count` objects, under the heap's lock. Throws Error with limit (no free block of that size),
  /// poisoned, deadline or broken.
  pointer allocate(size_type count) {
    static_assert(alignof(T) <= 4096, "regions are aligned to pages, not more");
    if (count > max_size()) throw detail::no_room(*header_, std::numeric_limits<std::uint64_t>::max());
    return pointer(static_cast<T*>(detail::allocate(*header_, count * sizeof(T), alignof(T))));
  }
  /// Gives it back. If the lock cannot be taken, the memory is lost, and HeapInfo::lost_bytes counts it.
  void deallocate(const pointer& block, size_type count) noexcept {
    detail::deallocate(*header_, boost::interprocess::ipcdetail::to_raw_pointer(block), count * sizeof(T));
  }
  /// The most objects that a process can address, and the heap.
  size_type max_size() const noexcept { return static_cast<size_type>(PTRDIFF_MAX) / sizeof(T); }
  detail::Header* header() const noexcept { return header_.get(); }
  friend bool operator==(const allocator& a, const allocator& b) noexcept { return a.header() == b.header(); }
  friend bool operator!=(const allocator& a, const allocator& b) noexcept { return a.header() != b.header(); }

 private:
  boost::interprocess::offset_ptr<detail::Header> header_;
};

// Elements that take an allocator get this one too. So a vector of strings lies in the heap completely.
template <class T>
using scoped_allocator = boost::container::scoped_allocator_adaptor<allocator<T> >;
template <class T>
using vector = boost::container::vector<T, scoped_allocator<T> >;
using string = boost::container::basic_string<char, std::char_traits<char>, allocator<char> >;
template <class Key, class T, class Less = std::less<Key> >
using map = boost::container::map<Key, T, Less, scoped_allocator<std::pair<const Key, T> > >;
template <class Key, class Less = std::less<Key> >
using set = boost::container::set<Key, Less, scoped_allocator<Key> >;
template <class Key, class T, class Hash = boost::hash<Key>, class Equal = std::equal_to<Key> >
using unordered_map = boost::unordered_map<Key, T, Hash, Equal, scoped_allocator<std::pair<const Key, T> > >;

}  // namespace heap

/// How a heap is made.
struct HeapOptions {
  CreateOptions region{};  // keep, group, replace, ...; a heap always has many writers
  Timeout lock_timeout{};  // of every call and every allocation, in every process; 5 s by default
};

/// The room in a heap, in bytes.
struct HeapInfo {
  std::uint64_t bytes;       // of the region
  std::uint64_t free_bytes;  // perhaps in pieces
  std::uint64_t lost_bytes;  // freed by destructors while the lock could not be taken
};

/// The contents of a poisoned heap, read without a lock. The constructors of the objects had finished. Their last
/// change may be half-done. Nothing here writes. Ownership: it keeps the mapping. Lifetime: what it returns is valid
/// until it ends. Threads: any.
class Salvage {
 public:
  /// An object by its name. Its bytes are in the mapping.
  struct Object {
    std::string name, type;  // the type's name is the compiler's
    std::span<const std::byte> bytes;
  };

  /// Needs only the right to read. Status: busy while the heap is not poisoned, because then only the lock protects
  /// readers from half-changed data, and taking it needs the right to write. Also invalid if the region holds no heap,
  /// and those of Session::try_attach(). Throws std::bad_alloc.
  static Result<Salvage> try_open(const Session& session, std::string_view address, const AttachOptions& options = {}) {
    auto attached = session.try_attach(address, options);
    if (!attached) return attached.error();
    auto region = std::make_shared<ReadOnlyRegion>(std::move(*attached));
    const auto bytes = region->bytes();
    return try_over(std::move(region), bytes);
  }
  /// The same over mapped memory, which `owner` keeps mapped. Statuses: invalid, busy.
  static Result<Salvage> try_over(std::shared_ptr<const void> owner, std::span<const std::byte> bytes) {
    const auto* header = reinterpret_cast<const heap::detail::Header*>(bytes.data());
    if (bytes.size() < heap::detail::kHeaderBytes || header->magic.load() != heap::detail::kMagic)
      return heap::detail::failure(Status::invalid, "the region holds no heap");
    if (!header->lock.poisoned())
      return heap::detail::failure(Status::busy,
                                   "the heap is not poisoned: open it for writing, and read under its lock");
    return Salvage(std::move(owner), heap::detail::Catalogue(bytes.data(), bytes.size()));
  }

  /// All named objects. Status: broken if a process has overwritten the list. Throws std::bad_alloc.
  Result<std::vector<Object> > try_objects() const {
    std::vector<Object> objects;
    for (std::size_t bucket = 0; bucket < heap::detail::kBuckets; ++bucket) {
      if (!catalogue_.walk(bucket, [&](const auto& entry, std::string_view name, std::string_view type, auto&) {
            objects.push_back({std::string(name),
                               std::string(type),
                               {catalogue_.base() + entry.object, static_cast<std::size_t>(entry.object_bytes)}});
            return false;
          }))
        return heap::detail::Catalogue::broken();
    }
    return {std::move(objects)};
  }
  /// For plain objects: any bytes are a value of such a type, though perhaps not one that was ever stored. Statuses:
  /// not_found, invalid (it is of another type), broken.
  template <class T>
  Result<const T*> try_find(std::string_view name) const {
    static_assert(std::is_trivially_copyable_v<T>, "see try_elements, try_text and try_find_unchecked");
    return try_find_unchecked<T>(name);
  }
  /// The elements of a heap::vector. Their place is checked, their contents are not. Statuses: those of try_find(), and
  /// broken for a vector in the midst of a change.
  template <class T>
  Result<std::span<const T> > try_elements(std::string_view name) const {
    static_assert(std::is_trivially_copyable_v<T>);
    auto found = try_find_unchecked<heap::vector<T> >(name);
    if (!found) return found.error();
    const std::size_t count = (*found)->size();
    const T* first = (*found)->data();
    if (count == 0) return std::span<const T>();
    if (count > SIZE_MAX / sizeof(T) || !contains(first, count * sizeof(T)) ||
        reinterpret_cast<std::uintptr_t>(first) % alignof(T) != 0)
      return heap::detail::failure(Status::broken, "the vector was killed in the midst of a change");
    return std::span<const T>(first, count);
  }
  /// The characters of a heap::string. Their place is checked. Statuses: those of try_elements().
  Result<std::string_view> try_text(std::string_view name) const {
    auto found = try_find_unchecked<heap::string>(name);
    if (!found) return found.error();
    const std::string_view text((*found)->data(), (*found)->size());
    if (!contains(text.data(), text.size()))
      return heap::detail::failure(Status::broken, "the string was killed in the midst of a change");
    return text;
  }
  /// Any object. DANGER: a map or a vector of strings may be half-changed. Following its pointers, and so every loop
  /// over it, may crash or never end. Check each pointer with `contains`, or do it in a process that may die. Statuses:
  /// those of try_find().
  template <class T>
  Result<const T*> try_find_unchecked(std::string_view name) const {
    return heap::detail::mapped<const T*>([&]() -> Result<const T*> {
      const T* found = catalogue_.find<T>(name);
      if (found == nullptr) return heap::detail::no_such(name);
      return found;
    });
  }
  /// Whether these bytes lie in the heap.
  bool contains(const void* address, std::size_t bytes) const noexcept { return catalogue_.inside(address, bytes); }

  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  static Salvage open(const Session& session, std::string_view address, const AttachOptions& options = {}) {
    return try_open(session, address, options).value();
  }
  std::vector<Object> objects() const { return try_objects().value(); }
  template <class T>
  const T* find(std::string_view name) const {
    return try_find<T>(name).value();
  }
  template <class T>
  std::span<const T> elements(std::string_view name) const {
    return try_elements<T>(name).value();
  }
  std::string_view text(std::string_view name) const { return try_text(name).value(); }
  template <class T>
  const T* find_unchecked(std::string_view name) const {
    return try_find_unchecked<T>(name).value();
  }

 private:
  Salvage(std::shared_ptr<const void> owner, heap::detail::Catalogue catalogue) noexcept
      : owner_(std::move(owner)), catalogue_(catalogue) {}
  std::shared_ptr<const void> owner_;  // keeps the mapping
  heap::detail::Catalogue catalogue_;
};

/// One process' handle of a heap. Ownership: copies are cheap, and each keeps the region. Lifetime: it, or a guard,
/// must outlive every use of what is in the heap. Threads: any number. Forks: a child continues to use it, but a guard
/// that its parent held is not the child's.
class Heap {
  using Header = heap::detail::Header;
  template <class T>
  using Plain = std::remove_cv_t<T>;

 public:
  /// The heap's lock, held. Ownership: the lock and the region; its end gives the lock back. Lifetime: as its region; a
  /// forked child's copy does not hold the lock. Threads: the thread that took the lock must give it back. It may take
  /// it again.
  class [[nodiscard]] Guard {
   public:
    Guard(Guard&& other) noexcept
        : region_(std::move(other.region_)), intent_(other.intent_), process_(other.process_) {}
    Guard& operator=(Guard&& other) noexcept {
      if (this != &other) {
        unlock();
        region_ = std::move(other.region_);
        intent_ = other.intent_;
        process_ = other.process_;
      }
      return *this;
    }
    ~Guard() { unlock(); }
    /// Gives the lock back now.
    void unlock() noexcept {
      // A forked child's copy does not hold the lock, and must not touch the holder's count of changes.
      if (region_ != nullptr && process_ == heap::detail::process()) header_of(*region_).lock.unlock(intent_);
      region_.reset();
    }

   private:
    friend class Heap;
    Guard(std::shared_ptr<Region> region, heap::Intent intent) noexcept
        : region_(std::move(region)), intent_(intent), process_(heap::detail::process()) {}
    std::shared_ptr<Region> region_;
    heap::Intent intent_;
    pid_t process_;
  };

  /// Makes a heap in a new region of `bytes` bytes with a name. Statuses: invalid (too small), and those of
  /// Session::try_create(). Throws std::bad_alloc.
  static Result<Heap> try_create(const Session& session, std::string_view name, std::uint64_t bytes,
                                 const HeapOptions& options = {}) {
    if (const auto enough = large_enough(bytes); !enough) return enough.error();
    CreateOptions region = options.region;
    region.name = name;
    region.many_writers = true;
    region.uninitialised = false;
    region.heap = true;
    auto made = session.try_create(bytes, region);
    if (!made) return made.error();
    return try_create(std::move(*made), options.lock_timeout);
  }
  /// Makes a heap in an existing region: all zeros, mapped for writing, made with many_writers. Statuses: invalid,
  /// exists (the region is not all zeros), system. Throws std::bad_alloc.
  static Result<Heap> try_create(Region region, Timeout lock_timeout = {}) {
    if (const auto enough = large_enough(region.bytes().size()); !enough) return enough.error();
    Header& header = header_of(region);
    // Of several makers one continues, before anything else is written: the lock must not be made twice.
    std::uint64_t blank = 0;
    if (!header.magic.compare_exchange_strong(blank, heap::detail::kMaking))
      return heap::detail::failure(Status::exists, "the region holds something already: a heap is made in zeros");
    return heap::detail::mapped<Heap>([&]() -> Result<Heap> {
      ::new (&header.lock) heap::robust_mutex();
      header.boost = BOOST_VERSION;
      header.pointer_bytes = sizeof(void*);
      header.mutex_bytes = sizeof(heap::robust_mutex);
      header.bytes = region.size();
      header.pid_namespace = heap::detail::pid_namespace();
      header.lock_timeout_ns = lock_timeout.nanoseconds();
      {
        // Held before any process can find the heap. So one that opens it learns of its maker's death.
        const heap::detail::Locked locked(header, heap::Intent::change);
        header.magic.store(heap::detail::kMagic);
        SHMBROKER_HEAP_STEP();
        heap::detail::Buffer buffer(boost::interprocess::create_only, region.data() + heap::detail::kHeaderBytes,
                                    region.size() - heap::detail::kHeaderBytes);
        header.manager =
            static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(buffer.get_segment_manager()) - region.data());
        SHMBROKER_HEAP_STEP();
        header.ready.store(1, std::memory_order_release);
      }
      return Heap(std::move(region));
    });
  }
  /// Waits for a name that does not exist yet as long as options.wait says, and for a heap in the making up to 5 s. A
  /// region that was not made for a heap, and holds none, is refused at once. Statuses: those of
  /// Session::try_attach_writable() and of the other try_open(). Throws std::bad_alloc.
  static Result<Heap> try_open(const Session& session, std::string_view address, const AttachOptions& options = {}) {
    auto region = session.try_attach_writable(address, options);
    if (!region) return region.error();
    return try_open(std::move(*region), options.timeout);
  }
  /// Opens the heap in a region that was attached for writing. A poisoned heap opens, so that it can be salvaged.
  /// Statuses: invalid (no heap), not_ready (none was made in time), unsupported (another Boost, or another PID
  /// namespace), poisoned or deadline for one that is being made, broken. Throws std::bad_alloc.
  static Result<Heap> try_open(Region region, Timeout wait = {}) {
    if (region.bytes().size() < heap::detail::kHeaderBytes)
      return heap::detail::failure(Status::invalid, "the region holds no heap: it is too small or not mapped");
    Header& header = header_of(region);
    const std::int64_t deadline = heap::detail::deadline_of(wait.nanoseconds());
    // Made for a heap: its maker is about to begin. In any other region the heap must exist now.
    const bool expected = (region.info().flags & SHMB_REGION_FLAG_HEAP) != 0;
    std::uint64_t magic = header.magic.load();
    for (; magic == heap::detail::kMaking || (magic == 0 && expected); magic = header.magic.load()) {
      if (heap::detail::monotonic_now() >= deadline)
        return heap::detail::failure(Status::not_ready, "the region holds no heap, and none was made in it in time");
      const timespec pause{0, 500'000};
      (void)::nanosleep(&pause, nullptr);
    }
    if (magic != heap::detail::kMagic || header.bytes != region.size())
      return heap::detail::failure(Status::invalid, "the region holds no heap: open it as a region");
    if (header.boost != BOOST_VERSION || header.pointer_bytes != sizeof(void*) ||
        header.mutex_bytes != sizeof(heap::robust_mutex))
      return heap::detail::failure(
          Status::unsupported,
          "the heap was made by a program built with Boost %u.%u for %u-bit machines, this one "
          "with Boost %u.%u for %zu-bit ones: build both with the same",
          header.boost / 100000, header.boost / 100 % 1000, header.pointer_bytes * 8, unsigned{BOOST_VERSION / 100000},
          unsigned{BOOST_VERSION / 100 % 1000}, sizeof(void*) * 8);
    const std::uint64_t here = heap::detail::pid_namespace();
    if (header.pid_namespace != 0 && here != 0 && header.pid_namespace != here)
      return heap::detail::failure(
          Status::unsupported,
          "the heap was made in another PID namespace: its lock tells threads apart by numbers "
          "that are only unique within one; run both in the same, or use a queue");
    if (header.ready.load(std::memory_order_acquire) == 0) {
      // Its maker holds the lock until the heap is complete, or dies with it.
      const Status status = header.lock.take(heap::Intent::read, wait.nanoseconds());
      if (status != Status::ok) return heap::robust_mutex::why(status, wait.nanoseconds());
      header.lock.unlock(heap::Intent::read);
      if (header.ready.load(std::memory_order_acquire) == 0)
        return heap::detail::failure(Status::broken, "the heap was never finished");
    }
    return Heap(std::move(region));
  }

  /// For changes: the death of the holder poisons the heap. Statuses: poisoned, deadline, broken.
  Result<Guard> try_lock(Timeout timeout = {}) const noexcept { return locked(heap::Intent::change, timeout); }
  /// For reading: the death of the holder does no harm. Calls that change something are allowed all the same. Statuses:
  /// those of try_lock().
  Result<Guard> try_lock_to_read(Timeout timeout = {}) const noexcept { return locked(heap::Intent::read, timeout); }

  /// An allocator for containers that a program makes in this heap.
  template <class T = std::byte>
  heap::allocator<T> allocator() const noexcept {
    return heap::allocator<T>(header());
  }

  /// Makes a named object. A T that takes an allocator gets the heap's. Statuses: exists (the name is taken), invalid
  /// (a name of 0 or over 255 bytes), limit (no room), poisoned, deadline, broken. Throws what the constructor throws;
  /// then nothing is left in the heap.
  template <class T, class... Arguments>
  Result<T*> try_construct(std::string_view name, Arguments&&... arguments) const {
    return heap::detail::mapped<T*>([&]() -> Result<T*> {
      const heap::detail::Locked locked(header(), heap::Intent::change);
      if (present(name))
        return heap::detail::failure(Status::exists, "the heap has an object '%.*s' already", int(name.size()),
                                     name.data());
      return make<T>(name, std::forward<Arguments>(arguments)...);
    });
  }
  /// The object of that name, made if there is none. Statuses: those of try_construct() but exists, and invalid for an
  /// object of another type. Throws what the constructor throws.
  template <class T, class... Arguments>
  Result<T*> try_find_or_construct(std::string_view name, Arguments&&... arguments) const {
    return heap::detail::mapped<T*>([&]() -> Result<T*> {
      const heap::detail::Locked locked(header(), heap::Intent::change);
      if (const T* found = catalogue().find<T>(name)) return const_cast<T*>(found);
      return make<T>(name, std::forward<Arguments>(arguments)...);
    });
  }
  /// The object of that name. It lives until it is destroyed: hold the lock while you use it. Statuses: not_found,
  /// invalid (it is of another type), poisoned, deadline, broken.
  template <class T>
  Result<T*> try_find(std::string_view name) const {
    return heap::detail::mapped<T*>([&]() -> Result<T*> {
      const heap::detail::Locked locked(header(), heap::Intent::read);
      const Plain<T>* found = catalogue().template find<Plain<T> >(name);
      if (found == nullptr) return heap::detail::no_such(name);
      return const_cast<Plain<T>*>(found);
    });
  }
  /// Destroys the object of that name and frees its memory. Statuses: those of try_find(). Throws what the destructor
  /// throws.
  template <class T>
  Result<void> try_destroy(std::string_view name) const {
    return heap::detail::mapped<void>([&]() -> Result<void> {
      const heap::detail::Locked locked(header(), heap::Intent::change);
      const auto* object = catalogue().template find<Plain<T> >(name);
      if (object == nullptr) return heap::detail::no_such(name);
      Entry* gone = unlink(name);
      SHMBROKER_HEAP_STEP();
      std::destroy_at(const_cast<Plain<T>*>(object));
      SHMBROKER_HEAP_STEP();
      heap::detail::deallocate(header(), const_cast<Plain<T>*>(object), sizeof(T));
      heap::detail::deallocate(header(), gone, sizeof(Entry));
      return {};
    });
  }
  /// The names of all objects, in no order. Statuses: poisoned, deadline, broken. Throws std::bad_alloc.
  Result<std::vector<std::string> > try_names() const {
    return heap::detail::mapped<std::vector<std::string> >([&]() -> Result<std::vector<std::string> > {
      const heap::detail::Locked locked(header(), heap::Intent::read);
      std::vector<std::string> names;
      for (std::size_t bucket = 0; bucket < heap::detail::kBuckets; ++bucket)
        if (!catalogue().walk(bucket, [&](const Entry&, std::string_view name, std::string_view, auto&) {
              names.emplace_back(name);
              return false;
            }))
          return heap::detail::Catalogue::broken();
      return {std::move(names)};
    });
  }

  /// The room. Statuses: poisoned, deadline, broken.
  Result<HeapInfo> try_info() const {
    return heap::detail::mapped<HeapInfo>([&]() -> Result<HeapInfo> {
      const heap::detail::Locked locked(header(), heap::Intent::read);
      return HeapInfo{header().bytes, static_cast<std::uint64_t>(manager().get_free_memory()),
                      header().lost.load(std::memory_order_relaxed)};
    });
  }
  /// Checks the allocator's structures. It visits every block. Statuses: poisoned, deadline, broken.
  Result<bool> try_check() const {
    return heap::detail::mapped<bool>([&]() -> Result<bool> {
      const heap::detail::Locked locked(header(), heap::Intent::read);
      return manager().check_sanity();
    });
  }
  /// Notices a dead holder without waiting for a live one.
  bool poisoned() const noexcept {
    if (header().lock.take(heap::Intent::read, SHMB_NO_WAIT) == Status::ok) header().lock.unlock(heap::Intent::read);
    return header().lock.poisoned();
  }
  /// Reads the rest of a poisoned heap. Status: busy if it is not poisoned.
  Result<Salvage> try_salvage() const {
    (void)poisoned();
    return Salvage::try_over(region_, region_->bytes());
  }
  /// The region of the heap, for its id, tickets and numbers. This object keeps it.
  const Region& region() const noexcept { return *region_; }  // for its id, tickets and numbers

  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  static Heap create(const Session& session, std::string_view name, std::uint64_t bytes,
                     const HeapOptions& options = {}) {
    return try_create(session, name, bytes, options).value();
  }
  static Heap create(Region region, Timeout lock_timeout = {}) {
    return try_create(std::move(region), lock_timeout).value();
  }
  static Heap open(const Session& session, std::string_view address, const AttachOptions& options = {}) {
    return try_open(session, address, options).value();
  }
  static Heap open(Region region, Timeout wait = {}) { return try_open(std::move(region), wait).value(); }
  Guard lock(Timeout timeout = {}) const { return try_lock(timeout).value(); }
  Guard lock_to_read(Timeout timeout = {}) const { return try_lock_to_read(timeout).value(); }
  template <class T, class... Arguments>
  T* construct(std::string_view name, Arguments&&... arguments) const {
    return try_construct<T>(name, std::forward<Arguments>(arguments)...).value();
  }
  template <class T, class... Arguments>
  T* find_or_construct(std::string_view name, Arguments&&... arguments) const {
    return try_find_or_construct<T>(name, std::forward<Arguments>(arguments)...).value();
  }
  template <class T>
  T* find(std::string_view name) const {
    return try_find<T>(name).value();
  }
  template <class T>
  void destroy(std::string_view name) const {
    try_destroy<T>(name).value();
  }
  std::vector<std::string> names() const { return try_names().value(); }
  HeapInfo info() const { return try_info().value(); }
  std::uint64_t free_bytes() const { return info().free_bytes; }
  bool check() const { return try_check().value(); }
  Salvage salvage() const { return try_salvage().value(); }

 private:
  using Entry = heap::detail::Entry;
  explicit Heap(Region&& region) : region_(std::make_shared<Region>(std::move(region))) {}

  static Header& header_of(const Region& region) noexcept { return *reinterpret_cast<Header*>(region.data()); }
  Header& header() const noexcept { return header_of(*region_); }
  heap::detail::Manager& manager() const noexcept { return heap::detail::manager_of(header()); }
  heap::detail::Catalogue catalogue() const noexcept { return {region_->data(), region_->size()}; }

  static Result<void> large_enough(std::uint64_t bytes) noexcept {
    const std::uint64_t least = heap::detail::kHeaderBytes + 2 * heap::detail::Manager::get_min_size();
    if (bytes < least)
      return heap::detail::failure(Status::invalid, "a heap needs a mapped region of at least %llu bytes, not %llu",
                                   static_cast<unsigned long long>(least), static_cast<unsigned long long>(bytes));
    return {};
  }
  Result<Guard> locked(heap::Intent intent, Timeout timeout) const noexcept {
    if (const Status status = header().lock.take(intent, timeout.nanoseconds()); status != Status::ok)
      return heap::robust_mutex::why(status, timeout.nanoseconds());
    return Guard(region_, intent);
  }

  bool present(std::string_view name) const {
    bool found = false;
    if (!catalogue().walk(catalogue().bucket_of(name),
                          [&](const Entry&, std::string_view n, std::string_view, auto&) { return found = n == name; }))
      throw heap::detail::Catalogue::broken();
    return found;
  }
  // Removes an existing entry from its chain, by one store.
  Entry* unlink(std::string_view name) const {
    Entry* gone = nullptr;
    (void)catalogue().walk(catalogue().bucket_of(name),
                           [&](const Entry& entry, std::string_view n, std::string_view, const auto& link) {
                             if (n != name) return false;
                             gone = const_cast<Entry*>(&entry);
                             const_cast<std::atomic<std::uint64_t>&>(link).store(entry.next.load());
                             return true;
                           });
    return gone;
  }
  template <class T, class... Arguments>
  Result<T*> make(std::string_view name, Arguments&&... arguments) const {
    static_assert(std::is_same_v<T, Plain<T> > && std::is_object_v<T> && !std::is_polymorphic_v<T>,
                  "another process has other addresses of virtual functions");
    static_assert(heap::fits<T>,
                  "std::string and std containers keep addresses of one process: construct heap::string, heap::vector, "
                  "heap::map, heap::set or heap::unordered_map");
    static_assert(alignof(T) <= 4096, "regions are aligned to pages, not more");
    if (const auto good = heap::detail::check_name(name); !good) return good.error();
    const std::string_view type = typeid(T).name();
    const std::size_t entry_bytes = sizeof(Entry) + name.size() + type.size();
    // Returned to the heap if a later step throws.
    struct Block {
      Header& header;
      void* at;
      std::size_t bytes;
      ~Block() {
        if (at != nullptr) heap::detail::deallocate(header, at, bytes);
      }
    };
    Block entry_block{header(), heap::detail::allocate(header(), entry_bytes, alignof(Entry)), entry_bytes};
    Block object_block{header(), heap::detail::allocate(header(), sizeof(T), alignof(T)), sizeof(T)};
    T* object = std::uninitialized_construct_using_allocator(static_cast<T*>(object_block.at), allocator(),
                                                             std::forward<Arguments>(arguments)...);
    SHMBROKER_HEAP_STEP();
    auto* entry = ::new (entry_block.at) Entry{};
    std::atomic<std::uint64_t>& head = header().buckets[catalogue().bucket_of(name)];
    entry->next.store(head.load());
    entry->object = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(object) - region_->data());
    entry->object_bytes = sizeof(T);
    entry->name_length = static_cast<std::uint32_t>(name.size());
    entry->type_length = static_cast<std::uint32_t>(type.size());
    char* text = reinterpret_cast<char*>(entry + 1);
    std::memcpy(text, name.data(), name.size());
    std::memcpy(text + name.size(), type.data(), type.size());
    SHMBROKER_HEAP_STEP();
    head.store(static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(entry) - region_->data()));
    SHMBROKER_HEAP_STEP();
    entry_block.at = object_block.at = nullptr;
    return object;
  }

  std::shared_ptr<Region> region_;
};

}  // namespace shmbroker

#endif
