// SPDX-License-Identifier: Apache-2.0
// Any packet, taken apart and put together again by the codec alone, whatever its message. The golden vectors, the
// mutation test and the fuzzer all go through here.
#pragma once

#include <expected>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "proto/codec.hpp"

namespace shmb::wire::test {

// error() of a value would be undefined, and has read as the very status that was asked for.
template <class T, class E>
bool failed(const std::expected<T, E>& result, E with) {
  return !result && result.error() == with;
}

// The facts that the codec needs about one struct, without its type.
struct Shape {
  const char* name;
  std::size_t size;
  std::expected<std::string, Status> (*read)(Bytes from);  // the struct as this side knows it
  std::expected<std::string, Status> (*read_element)(const BatchView&, std::size_t index);
  std::expected<std::string, Status> (*read_record)(RecordReader&);
  std::vector<std::pair<const char*, std::size_t>> (*texts)(const std::string& fields);
  std::size_t (*detail)(const std::string& fields);  // outcome.detail_len, else 0
  void (*begin)(Writer&, const shmbw_header&, const std::string& fields);
  void (*begin_batch)(Writer&, const shmbw_header&, std::size_t count);
  void (*element)(Writer&, std::size_t index, const std::string& fields);
  void (*append)(Writer&, const std::string& fields);
  nlohmann::ordered_json (*to_json)(const std::string& fields);
};

struct Part {
  const Shape* shape = nullptr;
  std::string fields;              // sizeof the struct
  std::vector<std::string> texts;  // in the order of shape->texts
  std::optional<std::string> detail;
};

struct Message {
  const char* name = "";
  const char* kind = "";  // request, reply, error, event
  shmbw_header header{};
  Part fixed;
  bool is_batch = false, is_list = false;
  std::vector<Part> parts;  // batch elements or records
  std::string sentence;     // of an error
};

using Decoded = std::variant<Malformed, Status, Message>;
// `table`: which records a LIST reply carries (enum shmbw_table); the reply does not say.
Decoded decode(Bytes packet, std::size_t n_fds, Direction direction, std::uint32_t table);
// With the structs in the sizes of this side. Empty when it does not fit.
Bytes encode(const Message& message, std::span<std::byte> buffer);
// As the vectors and tests/proto/decoder.py have it.
nlohmann::ordered_json to_json(const Decoded& decoded);

}  // namespace shmb::wire::test
