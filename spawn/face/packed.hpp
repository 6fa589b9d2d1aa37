// SPDX-License-Identifier: Apache-2.0
// Values as bytes of msgpack, written and read one after the other. spawn_values.hpp converts them from and to values
// of C++. msgpack-cxx reads and writes the same bytes, but its core takes as long to compile as all of spawn.hpp. Types
// that only msgpack-cxx knows go through spawn_msgpack.hpp. Every length and depth is checked, because a rank may send
// anything. It has no threads. It needs exceptions. Included by spawn.hpp.
#if __cplusplus < 202002L
#error "shmbroker/spawn.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_PACKED_HPP)
#define SHMBROKER_PACKED_HPP

#if !defined(__cpp_exceptions) && !defined(__EXCEPTIONS)
#error "shmbroker/packed.hpp needs exceptions; without, use shmbroker/shmbroker_spawn.h"
#else

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shmbroker::detail {

// Joins the parts of a sentence. A chain of operator+ takes a compiler far longer.
[[gnu::cold]] inline std::string joined(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (const std::string_view part : parts) out += part;
  return out;
}

// A value has another type than the one asked for, or does not fit.
struct TypeError : std::runtime_error {
  TypeError() : std::runtime_error("a value of another type") {}
};
// The bytes are no value of msgpack.
struct Malformed : std::invalid_argument {
  Malformed() : std::invalid_argument("the bytes are no value of msgpack") {}
};

// The deepest nesting of arrays and maps. Readers and writers of recursive classes need stack for each level.
inline constexpr int kDeepest = 512;

[[noreturn, gnu::cold]] inline void refuse_depth() {
  throw std::invalid_argument(joined({"a value has more than ", std::to_string(kDeepest),
                                      " arrays and maps in one another, which is the limit: send a flatter value, a "
                                      "list with numbers in place of pointers for example"}));
}

// While it exists, one more array or map is open.
class Level {
 public:
  explicit Level(int& depth) : depth_(depth) {
    if (depth_ >= kDeepest) refuse_depth();
    ++depth_;
  }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ~Level() { --depth_; }

 private:
  int& depth_;
};

// The memory that the elements of containers in one message may take: kLeastMemory, plus kMemoryPerByte for each of its
// bytes.
inline constexpr std::size_t kLeastMemory = std::size_t{64} << 20, kMemoryPerByte = 256;

[[noreturn, gnu::cold]] inline void refuse_memory(std::size_t bytes) {
  throw std::invalid_argument(
      joined({"the elements of the containers in a message would take more memory than it may make, which is ",
              std::to_string(kLeastMemory >> 20), " MiB and ", std::to_string(kMemoryPerByte),
              " bytes for each of its bytes (the next element takes ", std::to_string(bytes),
              " bytes): send fewer, or put their large members into std::vector or std::unique_ptr"}));
}

class Packer {
 public:
  // For the elements of an array or a map.
  [[nodiscard]] Level enter() { return Level(depth_); }
  void nil() { byte(0xc0); }
  void boolean(bool value) { byte(value ? 0xc3 : 0xc2); }
  void whole(std::uint64_t value) {
    if (value < 0x80) byte(static_cast<std::uint8_t>(value));
    else if (value <= 0xff) head(0xcc, value, 1);
    else if (value <= 0xffff) head(0xcd, value, 2);
    else if (value <= 0xffffffff) head(0xce, value, 4);
    else head(0xcf, value, 8);
  }
  void integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0) whole(bits);
    else if (value >= -32) byte(static_cast<std::uint8_t>(bits));
    else if (value >= INT8_MIN) head(0xd0, bits, 1);
    else if (value >= INT16_MIN) head(0xd1, bits, 2);
    else if (value >= INT32_MIN) head(0xd2, bits, 4);
    else head(0xd3, bits, 8);
  }
  // Whole numbers become integers, as in msgpack-cxx: they are shorter, and a parameter of type int accepts them.
  void real(double value) {
    if (whole_number(value)) return;
    std::uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    head(0xcb, bits, 8);
  }
  void real(float value) {
    if (whole_number(static_cast<double>(value))) return;
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    head(0xca, bits, 4);
  }
  void text(std::string_view value) {
    if (value.size() < 32) byte(static_cast<std::uint8_t>(0xa0 | value.size()));
    else sized(0xd9, value.size());
    out_.append(value);
  }
  void binary(const void* data, std::size_t size) {
    sized(0xc4, size);
    out_.append(static_cast<const char*>(data), size);
  }
  void array(std::size_t count) {
    if (count < 16) byte(static_cast<std::uint8_t>(0x90 | count));
    else counted(0xdc, count);
  }
  void map(std::size_t count) {
    if (count < 16) byte(static_cast<std::uint8_t>(0x80 | count));
    else counted(0xde, count);
  }
  void extension(std::int8_t type, const void* data, std::size_t size) {
    if (size == 1) byte(0xd4);
    else if (size == 2) byte(0xd5);
    else if (size == 4) byte(0xd6);
    else if (size == 8) byte(0xd7);
    else if (size == 16) byte(0xd8);
    else sized(0xc7, size);
    byte(static_cast<std::uint8_t>(type));
    out_.append(static_cast<const char*>(data), size);
  }
  // Bytes that are one value of msgpack.
  inline void packed(std::string_view value);
  // Bytes that are part of a value.
  void raw(const char* data, std::size_t size) { out_.append(data, size); }
  const std::string& bytes() const noexcept { return out_; }
  std::string take() { return static_cast<std::string&&>(out_); }

 private:
  void byte(std::uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void head(std::uint8_t first, std::uint64_t value, int size) {  // the highest byte first
    byte(first);
    while (size-- > 0) byte(static_cast<std::uint8_t>(value >> (8 * size)));
  }
  void sized(std::uint8_t of_one_byte, std::size_t size) {
    if (size > UINT32_MAX) throw std::length_error("a text or an array of bytes has at most 4 GiB - 1");
    if (size <= 0xff) head(of_one_byte, size, 1);
    else if (size <= 0xffff) head(static_cast<std::uint8_t>(of_one_byte + 1), size, 2);
    else head(static_cast<std::uint8_t>(of_one_byte + 2), size, 4);
  }
  void counted(std::uint8_t of_two_bytes, std::size_t count) {
    if (count > UINT32_MAX) throw std::length_error("a container has at most 4,294,967,295 elements");
    if (count <= 0xffff) head(of_two_bytes, count, 2);
    else head(static_cast<std::uint8_t>(of_two_bytes + 1), count, 4);
  }
  bool whole_number(double value) {
    constexpr double kEnd = 18446744073709551616.0;  // 2^64
    std::uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (bits == 0) whole(0);  // and not -0.0
    else if (value > 0 && value < kEnd && value == static_cast<double>(static_cast<std::uint64_t>(value)))
      whole(static_cast<std::uint64_t>(value));
    else if (value < 0 && value >= -kEnd / 2 && value == static_cast<double>(static_cast<std::int64_t>(value)))
      integer(static_cast<std::int64_t>(value));
    else return false;
    return true;
  }
  std::string out_;
  int depth_ = 0;
};

// Reads memory of the caller, each byte once, because another process may be able to change it.
class Reader {
 public:
  enum class Kind { nil, boolean, whole, negative, real, text, binary, array, map, extension };
  // One value, or the head of an array or a map, whose elements follow it.
  struct Item {
    Kind kind = Kind::nil;
    std::int8_t type = 0;  // of an extension
    // boolean, integer, the bits of a negative one; the number of elements, or of pairs of a map
    std::uint64_t number = 0;
    double real = 0;
    std::string_view bytes{};  // of text, binary, extension
  };

  explicit Reader(std::string_view in) noexcept : in_(in), memory_(memory_for(in.size())) {}
  Reader(const void* data, std::size_t size) noexcept
      : Reader(std::string_view(static_cast<const char*>(data), size)) {}
  bool done() const noexcept { return in_.empty(); }
  // For the elements of an array or a map.
  [[nodiscard]] Level enter() { return Level(depth_); }
  Item peek() const {
    Reader copy(*this);
    return copy.take();
  }
  Item take() {
    const auto first = static_cast<std::uint8_t>(number(1));
    if (first < 0x80) return {.kind = Kind::whole, .number = first};
    if (first < 0x90) return {.kind = Kind::map, .number = first & 0x0fU};
    if (first < 0xa0) return {.kind = Kind::array, .number = first & 0x0fU};
    if (first < 0xc0) return block(Kind::text, first & 0x1fU);
    if (first >= 0xe0) return signed_of(first, 1);
    switch (first) {
      case 0xc0:
        return {};
      case 0xc2:
      case 0xc3:
        return {.kind = Kind::boolean, .number = first & 1U};
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return block(Kind::binary, number(1 << (first - 0xc4)));
      case 0xc7:
      case 0xc8:
      case 0xc9:
        return extension(number(1 << (first - 0xc7)));
      case 0xca:
        return float_of(static_cast<std::uint32_t>(number(4)));
      case 0xcb:
        return double_of(number(8));
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
        return {.kind = Kind::whole, .number = number(1 << (first - 0xcc))};
      case 0xd0:
      case 0xd1:
      case 0xd2:
      case 0xd3: {
        const int size = 1 << (first - 0xd0);
        return signed_of(number(size), size);
      }
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return extension(std::uint64_t{1} << (first - 0xd4));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return block(Kind::text, number(1 << (first - 0xd9)));
      case 0xdc:
      case 0xdd:
        return {.kind = Kind::array, .number = number(2 << (first - 0xdc))};
      case 0xde:
      case 0xdf:
        return {.kind = Kind::map, .number = number(2 << (first - 0xde))};
      default:
        throw Malformed();
    }
  }
  Item take(Kind kind) {
    const Item item = take();
    if (item.kind != kind) throw TypeError();
    return item;
  }
  // Call before a value of `bytes` bytes is made for an element. One byte may stand for a large value, so the memory
  // that a message takes is bounded by its size.
  void make(std::size_t bytes) {
    if (bytes > memory_) refuse_memory(bytes);
    memory_ -= bytes;
  }
  // Takes the head of an array and returns the number of its elements.
  std::size_t array() { return static_cast<std::size_t>(take(Kind::array).number); }
  // A text or binary.
  std::string_view bytes() {
    const Item item = take();
    if (item.kind != Kind::text && item.kind != Kind::binary) throw TypeError();
    return item.bytes;
  }
  // Skips one value with all its elements, and returns its bytes.
  std::string_view skip() {
    const std::string_view begin = in_;
    std::uint64_t left[kDeepest + 1];  // the rest of each open array and map
    int open = 0;
    left[0] = 1;
    while (open >= 0) {
      if (left[open] == 0) {
        --open;
        continue;
      }
      --left[open];
      const Item item = take();
      if (item.kind != Kind::array && item.kind != Kind::map) continue;
      if (depth_ + open >= kDeepest) refuse_depth();
      left[++open] = item.kind == Kind::map ? 2 * item.number : item.number;
    }
    return begin.substr(0, begin.size() - in_.size());
  }
  // True: these bytes are one value. Throws std::invalid_argument if it is too deep.
  static bool is_value(std::string_view bytes) {
    try {
      Reader in(bytes);
      (void)in.skip();
      return in.done();
    } catch (const Malformed&) {
      return false;
    }
  }

 private:
  std::string_view part(std::uint64_t size) {
    if (size > in_.size()) throw Malformed();
    const std::string_view out = in_.substr(0, static_cast<std::size_t>(size));
    in_.remove_prefix(out.size());
    return out;
  }
  std::uint64_t number(int size) {
    std::uint64_t out = 0;
    for (const char one : part(static_cast<std::uint64_t>(size))) out = out << 8 | static_cast<std::uint8_t>(one);
    return out;
  }
  Item block(Kind kind, std::uint64_t size) { return {.kind = kind, .bytes = part(size)}; }
  Item extension(std::uint64_t size) {
    const auto type = static_cast<std::int8_t>(number(1));
    return {.kind = Kind::extension, .type = type, .bytes = part(size)};
  }
  static Item signed_of(std::uint64_t bits, int size) {
    const int unused = 64 - 8 * size;
    const auto value = static_cast<std::int64_t>(bits << unused) >> unused;
    return {.kind = value < 0 ? Kind::negative : Kind::whole, .number = static_cast<std::uint64_t>(value)};
  }
  static Item float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return {.kind = Kind::real, .real = static_cast<double>(value)};
  }
  static Item double_of(std::uint64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return {.kind = Kind::real, .real = value};
  }
  static std::size_t memory_for(std::size_t bytes) noexcept {
    return bytes > (SIZE_MAX - kLeastMemory) / kMemoryPerByte ? SIZE_MAX : kLeastMemory + kMemoryPerByte * bytes;
  }
  friend Packer;
  std::string_view in_;
  std::size_t memory_;
  int depth_ = 0;
};

inline void Packer::packed(std::string_view value) {
  Reader in(value);
  in.depth_ = depth_;
  (void)in.skip();
  out_.append(value);
}

}  // namespace shmbroker::detail

#endif
#endif
