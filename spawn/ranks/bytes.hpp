// SPDX-License-Identifier: Apache-2.0
// Numbers and texts as bytes and back, for messages between the processes of spawn. They are of one build on one host,
// so the byte order is the host's. Reading is checked all the same, because a rank may write anything.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace shmb::spawn {

class Packer {
 public:
  template <class T>
  Packer& number(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packer& text(std::string_view value) {
    number<std::uint64_t>(value.size());
    out_.append(value);
    return *this;
  }
  Packer& texts(const std::vector<std::string>& values) {
    number<std::uint64_t>(values.size());
    for (const std::string& one : values) text(one);
    return *this;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// After the first read beyond the end every read returns zero, and `whole` is false.
class Unpacker {
 public:
  explicit Unpacker(std::string_view in) : in_(in) {}
  template <class T>
  T number() {
    T value{};
    if (in_.size() < sizeof value) {
      fail();
      return value;
    }
    std::memcpy(&value, in_.data(), sizeof value);
    in_.remove_prefix(sizeof value);
    return value;
  }
  bool flag() { return number<std::uint8_t>() != 0; }
  std::string text() {
    const auto size = number<std::uint64_t>();
    if (size > in_.size()) {
      fail();
      return {};
    }
    std::string value(in_.substr(0, size));
    in_.remove_prefix(size);
    return value;
  }
  std::vector<std::string> texts() {
    const auto count = number<std::uint64_t>();
    std::vector<std::string> values;
    for (std::uint64_t i = 0; i < count && whole_; ++i) values.push_back(text());
    return values;
  }
  std::string_view rest() const { return in_; }  // the bytes that were not read
  bool whole() const { return whole_; }
  bool done() const { return whole_ && in_.empty(); }

 private:
  void fail() {
    whole_ = false;
    in_ = {};
  }
  std::string_view in_;
  bool whole_ = true;
};

}  // namespace shmb::spawn
