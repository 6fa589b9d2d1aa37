// SPDX-License-Identifier: Apache-2.0
// The list of tensors in a region: what fits, what comes back, and what a liar may send.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <string>

#include "cuda/manifest.hpp"

using shmb::Status;
using shmb::cuda::Manifest;
using shmb::cuda::Tensor;

namespace {

Tensor a_tensor(std::string name, std::vector<std::int64_t> shape, std::uint64_t offset = 0) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  tensor.offset = offset;
  tensor.type = {2, 32, 1};
  return tensor;
}

std::string refusal_of(const Tensor& tensor, std::uint64_t length) {
  const auto fine = shmb::cuda::fits(tensor, length);
  return fine ? std::string() : fine.error().sentence;
}

}  // namespace

TEST_CASE("tensors come back as they were listed") {
  std::vector<Tensor> tensors = {a_tensor("layer.0.weight", {3, 5}), a_tensor("scalar", {}, 60),
                                 a_tensor("empty", {0, 7}, 64), a_tensor("turned", {5, 3}, 0)};
  tensors[3].strides = {1, 5};
  tensors[1].type = {4, 16, 1};
  auto made = Manifest::of(tensors, 64);
  REQUIRE(made);
  auto read = Manifest::decode(made->encode(), 64);
  REQUIRE(read);
  REQUIRE(read->tensors().size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const Tensor& tensor = read->tensors()[i];
    CHECK(tensor.name == tensors[i].name);
    CHECK(tensor.shape == tensors[i].shape);
    CHECK(tensor.strides == tensors[i].strides);
    CHECK(tensor.offset == tensors[i].offset);
    CHECK(tensor.type.bits == tensors[i].type.bits);
    CHECK(tensor.type.code == tensors[i].type.code);
  }
  CHECK(read->find("turned")->strides_or_rows() == std::vector<std::int64_t>{1, 5});
  CHECK(read->find("layer.0.weight")->strides_or_rows() == std::vector<std::int64_t>{5, 1});
  CHECK(read->find("layer.0.weight")->elements() == 15);
  CHECK(read->find("missing") == nullptr);
}

TEST_CASE("no tensors take no bytes") {
  CHECK(Manifest().encode().empty());
  auto read = Manifest::decode({}, 100);
  REQUIRE(read);
  CHECK(read->empty());
}

TEST_CASE("a tensor that does not fit is refused by name, with where it ends") {
  CHECK(refusal_of(a_tensor("fits", {4, 4}), 64).empty());
  CHECK(refusal_of(a_tensor("long", {4, 4}, 4), 64).find("'long' reaches to 68") != std::string::npos);
  CHECK(refusal_of(a_tensor("far", {1}, 65), 64).find("'far' begins at 65") != std::string::npos);
  CHECK(refusal_of(a_tensor("vast", {std::int64_t{1} << 62, 8}), 64).find("beyond all memory") != std::string::npos);
  CHECK(refusal_of(a_tensor("nothing", {0, std::int64_t{1} << 62}), 64).empty());
  CHECK_FALSE(refusal_of(a_tensor("", {1}), 64).empty());
  CHECK_FALSE(refusal_of(a_tensor("below", {-1}), 64).empty());
  Tensor strided = a_tensor("strided", {2, 2});
  strided.strides = {14, 1};
  CHECK(refusal_of(strided, 64).empty());  // the last element ends at 64
  strided.strides = {15, 1};
  CHECK_FALSE(refusal_of(strided, 64).empty());
  strided.strides = {-1, 1};
  CHECK_FALSE(refusal_of(strided, 64).empty());
  strided.strides = {1};
  CHECK_FALSE(refusal_of(strided, 64).empty());
  strided.strides = {std::numeric_limits<std::int64_t>::max(), 1};
  CHECK_FALSE(refusal_of(strided, 64).empty());
  Tensor bits = a_tensor("bits", {17});
  bits.type = {1, 4, 1};
  CHECK(refusal_of(bits, 9).empty());  // half bytes, the last one rounded up
  CHECK_FALSE(refusal_of(bits, 8).empty());
  bits.type.bits = 0;
  CHECK_FALSE(refusal_of(bits, 100).empty());
}

TEST_CASE("a shape whose strides no number can hold is refused, also where an extent of 0 leaves no element") {
  shmb::cuda::Tensor tensor;
  tensor.name = "t";
  tensor.type = {2, 32, 1};
  const std::int64_t much = std::int64_t{1} << 40;
  tensor.shape = {much, much, much, 0};
  CHECK_FALSE(shmb::cuda::fits(tensor, 1 << 20));
  tensor.shape = {0, much};
  CHECK(shmb::cuda::fits(tensor, 1 << 20));
  CHECK(tensor.strides_or_rows() == std::vector<std::int64_t>{much, 1});
}

TEST_CASE("two tensors of one name are refused") {
  auto made = Manifest::of({a_tensor("same", {1}), a_tensor("same", {1}, 4)}, 64);
  REQUIRE_FALSE(made);
  CHECK(made.error().status == Status::invalid);
  CHECK(made.error().sentence.find("'same'") != std::string::npos);
}

TEST_CASE("20,000 tensors fit into one list") {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 20'000; ++i)
    tensors.push_back(
        a_tensor("model.layers." + std::to_string(i) + ".mlp.weight", {8, 8}, static_cast<std::uint64_t>(i) * 256));
  auto made = Manifest::of(std::move(tensors), 20'000 * 256);
  REQUIRE(made);
  const auto bytes = made->encode();
  CHECK(bytes.size() < (std::size_t{4} << 20));
  auto read = Manifest::decode(bytes, 20'000 * 256);
  REQUIRE(read);
  CHECK(read->find("model.layers.19999.mlp.weight")->offset == 19'999 * 256);
}

TEST_CASE("a list that is cut, lengthened or changed at any byte is read as tensors inside the region, or refused") {
  Tensor strided = a_tensor("b", {2, 2}, 16);
  strided.strides = {2, 1};
  auto made = Manifest::of({a_tensor("a", {2, 2}), strided}, 64);
  REQUIRE(made);
  const auto bytes = made->encode();
  for (std::size_t size = 1; size < bytes.size(); ++size)
    CHECK_FALSE(Manifest::decode(std::span(bytes).first(size), 64));
  auto longer = bytes;
  longer.push_back(std::byte{0});
  CHECK_FALSE(Manifest::decode(longer, 64));
  int refused = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      auto changed = bytes;
      changed[at] ^= static_cast<std::byte>(flip);
      auto read = Manifest::decode(changed, 64);
      if (!read) ++refused;
      else
        for (const Tensor& tensor : read->tensors()) CHECK(shmb::cuda::fits(tensor, 64));
    }
  }
  CHECK(refused > 0);
}

TEST_CASE("a list that claims more than it has asks for no memory") {
  std::vector<std::byte> bytes(12);
  const std::uint32_t words[] = {0x546d6873, 1, 0xffffffff};
  std::memcpy(bytes.data(), words, sizeof words);
  CHECK_FALSE(Manifest::decode(bytes, 64));
}

TEST_CASE("a set's list has the lengths of its chunks, and is refused when they do not add up to the region") {
  constexpr std::uint64_t kTwo = 2 << 20, kFour = 4 << 20;
  auto made = Manifest::of_set({a_tensor("a", {2, 2}), a_tensor("b", {4}, kTwo)}, {kTwo, kFour});
  REQUIRE(made);
  const auto bytes = made->encode();
  auto read = Manifest::decode(bytes, kTwo + kFour);
  REQUIRE(read);
  CHECK(std::vector(read->chunks().begin(), read->chunks().end()) == std::vector{kTwo, kFour});
  CHECK(read->find("b")->offset == kTwo);
  CHECK_FALSE(Manifest::decode(bytes, kTwo));
  CHECK_FALSE(Manifest::of_set({a_tensor("b", {4}, kTwo)}, {kTwo}));
  for (std::size_t size = 1; size < bytes.size(); ++size)
    CHECK_FALSE(Manifest::decode(std::span(bytes).first(size), kTwo + kFour));
}

TEST_CASE("a newer list says that a newer library is needed") {
  auto bytes = Manifest::of({a_tensor("a", {1})}, 64)->encode();
  bytes[4] = std::byte{3};
  auto read = Manifest::decode(bytes, 64);
  REQUIRE_FALSE(read);
  CHECK(read.error().status == Status::too_new);
}
