// SPDX-License-Identifier: Apache-2.0
// A tensor, as the scenarios of docs/conformance.md use the word: a type, a shape and a place in a storage, which is
// private memory or a region. Tensors travel in one message of a queue: a description, and for each tensor its region.
// The library tells which parts of a message are one mapping; what came in an earlier message, or was made here, the
// process finds in a table, so that it has one storage for each region. A Python binding does the same with torch's own
// tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "client/face/shmbroker_pool.hpp"

namespace conformance {

class Storage {
 public:
  // Zeros that nobody has touched yet cost nothing.
  explicit Storage(std::size_t bytes)
      : size_(bytes), own_(bytes == 0 ? nullptr : static_cast<std::byte*>(std::calloc(bytes, 1))) {}
  explicit Storage(shmbroker::Region region) : size_(region.size()), region_(std::move(region)), shared_(true) {}
  std::size_t size() const { return size_; }
  std::byte* data() const { return region_ ? region_->data() : own_.get(); }
  bool is_shared() const { return shared_; }
  const std::optional<shmbroker::Region>& region() const { return region_; }
  // Moves the contents into a region, also where there are none.
  void share(const shmbroker::Session& session, shmbroker::GroupId group = {});

 private:
  std::size_t size_;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> own_;
  std::optional<shmbroker::Region> region_;
  bool shared_ = false;
};

enum class Type : std::uint8_t { float32, float64, int64 };
std::size_t width(Type type);

struct Tensor {
  std::shared_ptr<Storage> storage;
  Type type = Type::float64;
  std::vector<std::size_t> shape, strides;  // in elements
  std::size_t offset = 0;

  static Tensor zeros(Type type, std::vector<std::size_t> shape);
  std::size_t count() const;
  bool is_shared() const { return storage->is_shared(); }
  void share_memory(const shmbroker::Session& session) { storage->share(session); }
  Tensor row(std::size_t number) const {
    return {storage, type, {shape[1]}, {strides[1]}, offset + number * strides[0]};
  }
  Tensor column(std::size_t number) const {
    return {storage, type, {shape[0]}, {strides[0]}, offset + number * strides[1]};
  }
  void fill(double value) {
    each([&](auto& element) { element = static_cast<std::decay_t<decltype(element)>>(value); });
  }
  void add(double value) {
    each([&](auto& element) { element += static_cast<std::decay_t<decltype(element)>>(value); });
  }
  bool all(double value) const {
    bool same = true;
    each([&](auto& element) { same &= static_cast<double>(element) == value; });
    return same;
  }

 private:
  template <class T, class Body>
  void each_of(Body& body, std::size_t at, std::size_t dimension) const {
    if (dimension == shape.size()) return body(reinterpret_cast<T*>(storage->data())[at]);
    for (std::size_t i = 0; i < shape[dimension]; ++i) each_of<T>(body, at + i * strides[dimension], dimension + 1);
  }
  template <class Body>
  void each(Body body) const {
    if (type == Type::float32) each_of<float>(body, offset, 0);
    else if (type == Type::float64) each_of<double>(body, offset, 0);
    else each_of<std::int64_t>(body, offset, 0);
  }
};
bool equal(const Tensor& a, const Tensor& b);  // type, shape and contents

// Storages that are private are shared by this, each once; of one that its tensors show a small part of, that part is
// copied instead, and the sender's stays its own. Throws what the library throws.
// `where`: the session to make regions with, and the group that they live in, which is the pool's.
struct Place {
  const shmbroker::Session& session;
  shmbroker::GroupId group;
  Place(const shmbroker::Session& of, const shmbroker::Pool& pool) : session(of), group{pool.info().group} {}
};
void put(const Place& where, const shmbroker::Queue& queue, const std::vector<Tensor>& tensors, std::uint64_t type = 0);
struct Received {
  std::vector<Tensor> tensors;
  std::uint64_t type = 0;
};
Received get(const shmbroker::Queue& queue, shmbroker::Timeout wait = std::chrono::seconds(60));

}  // namespace conformance
