// SPDX-License-Identifier: Apache-2.0
// See tensor.hpp.
#include "tests/conformance/tensor.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace conformance {
namespace {

using shmbroker::Part;
using shmbroker::RegionId;
using shmbroker::Rights;

// The storage of this process for each region. One that is gone is searched again.
std::shared_ptr<Storage> known(const RegionId& id, const std::shared_ptr<Storage>& fresh) {
  static std::map<RegionId, std::weak_ptr<Storage>> all;
  std::erase_if(all, [](const auto& one) { return one.second.expired(); });
  if (fresh != nullptr) all[id] = fresh;
  const auto found = all.find(id);
  return found == all.end() ? nullptr : found->second.lock();
}

struct Description {
  std::uint64_t type = 0, dimensions = 0, offset = 0;
  std::uint64_t shape[4] = {}, strides[4] = {};
};

struct Extent {
  std::size_t begin = SIZE_MAX, end = 0;  // bytes
};

Extent extent_of(const Tensor& tensor) {
  if (tensor.count() == 0) return {tensor.offset * width(tensor.type), tensor.offset * width(tensor.type)};
  std::size_t last = tensor.offset;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) last += (tensor.shape[i] - 1) * tensor.strides[i];
  return {tensor.offset * width(tensor.type), (last + 1) * width(tensor.type)};
}

}  // namespace

std::size_t width(Type type) { return type == Type::float32 ? 4 : 8; }

void Storage::share(const shmbroker::Session& session, shmbroker::GroupId group) {
  if (shared_) return;
  region_ = session.create(size_, {.group = group});
  if (size_ != 0) std::memcpy(region_->data(), own_.get(), size_);
  own_.reset();
  shared_ = true;
}

Tensor Tensor::zeros(Type type, std::vector<std::size_t> shape) {
  Tensor made;
  made.type = type;
  made.shape = std::move(shape);
  made.strides.resize(made.shape.size());
  std::size_t stride = 1;
  for (std::size_t i = made.shape.size(); i-- > 0; stride *= made.shape[i]) made.strides[i] = stride;
  made.storage = std::make_shared<Storage>(stride * width(type));
  return made;
}

std::size_t Tensor::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

bool equal(const Tensor& a, const Tensor& b) {
  if (a.type != b.type || a.shape != b.shape) return false;
  if (a.count() == 0) return true;
  const Extent in_a = extent_of(a), in_b = extent_of(b);
  return a.strides == b.strides && in_a.end - in_a.begin == in_b.end - in_b.begin &&
         std::memcmp(a.storage->data() + in_a.begin, b.storage->data() + in_b.begin, in_a.end - in_a.begin) == 0;
}

void put(const Place& where, const shmbroker::Queue& queue, const std::vector<Tensor>& tensors, std::uint64_t type) {
  std::map<Storage*, Extent> shown;
  for (const Tensor& tensor : tensors) {
    const Extent own = extent_of(tensor);
    Extent& all = shown[tensor.storage.get()];
    all = {std::min(all.begin, own.begin), std::max(all.end, own.end)};
  }
  std::map<Storage*, std::pair<std::shared_ptr<Storage>, std::size_t>> place;  // what is sent, and where it begins
  std::vector<Description> descriptions;
  for (const Tensor& tensor : tensors) {
    Description one;
    one.type = static_cast<std::uint64_t>(tensor.type);
    one.dimensions = tensor.shape.size();
    std::ranges::copy(tensor.shape, one.shape);
    std::ranges::copy(tensor.strides, one.strides);
    const auto [found, first] = place.try_emplace(tensor.storage.get());
    if (first) {
      const Extent part = shown[tensor.storage.get()];
      auto sent = tensor.storage;
      std::size_t begin = 0;
      if (!sent->is_shared() && part.end - part.begin < sent->size()) {
        begin = part.begin;
        sent = std::make_shared<Storage>(part.end - part.begin);
        if (sent->size() != 0) std::memcpy(sent->data(), tensor.storage->data() + begin, sent->size());
      }
      sent->share(where.session, where.group);
      known(sent->region()->id(), sent);
      found->second = {std::move(sent), begin};
    }
    one.offset = tensor.offset - found->second.second / width(tensor.type);
    descriptions.push_back(one);
  }
  std::vector<Part> parts{Part(std::as_bytes(std::span(descriptions)))};
  for (const Tensor& tensor : tensors)
    parts.push_back(Part(*place[tensor.storage.get()].first->region(), Rights::read | Rights::write | Rights::share));
  shmbroker::SendOptions options;
  options.type = type;
  options.wait = std::chrono::seconds(60);
  queue.send_parts(parts, options);
}

Received get(const shmbroker::Queue& queue, shmbroker::Timeout wait) {
  shmbroker::Message message;
  queue.receive(message, wait);
  Received received;
  received.type = message.type();
  const auto bytes = message.part(0).bytes;
  std::vector<Description> descriptions(bytes.size() / sizeof(Description));
  std::memcpy(descriptions.data(), bytes.data(), descriptions.size() * sizeof(Description));
  std::vector<std::shared_ptr<Storage>> storages;
  for (std::size_t i = 1; i < message.count(); ++i) {
    const auto part = message.part(i);
    if (part.same_as != i) {
      storages.push_back(storages.at(part.same_as - 1));
      continue;
    }
    auto storage = known(part.region, nullptr);
    if (storage == nullptr) storage = known(part.region, std::make_shared<Storage>(message.take_writable_region(i)));
    storages.push_back(std::move(storage));
  }
  for (std::size_t i = 0; i < descriptions.size(); ++i) {
    const Description& one = descriptions[i];
    Tensor tensor;
    tensor.type = static_cast<Type>(one.type);
    tensor.shape.assign(one.shape, one.shape + one.dimensions);
    tensor.strides.assign(one.strides, one.strides + one.dimensions);
    tensor.offset = one.offset;
    tensor.storage = storages.at(i);
    received.tensors.push_back(std::move(tensor));
  }
  message.done();
  return received;
}

}  // namespace conformance
