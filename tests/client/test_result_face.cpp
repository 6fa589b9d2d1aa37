// SPDX-License-Identifier: Apache-2.0
// Result as std::expected has it, names as string_view, and the words of the C++ face. No broker is asked.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "client/face/shmbroker_pool.hpp"
#include "client/session/words.hpp"

namespace result_face {

using shmbroker::Error;
using shmbroker::Result;
using shmbroker::Status;
using namespace std::string_view_literals;

static_assert(std::is_same_v<decltype(std::declval<const Result<int>&>().value()), const int&>);
static_assert(std::is_same_v<decltype(std::declval<Result<int>&>().value()), int&>);
static_assert(std::is_same_v<decltype(std::declval<Result<int>>().value()), int>);

TEST_CASE("value_or gives the value, or the other, also of types that only move") {
  CHECK(Result<int>(7).value_or(1) == 7);
  CHECK(Result<int>(Error(Status::busy)).value_or(1) == 1);
  const Result<std::string> text("there"), none{Error(Status::busy)};
  CHECK(text.value_or("other") == "there");
  CHECK(none.value_or("other") == "other");
  Result<std::unique_ptr<int>> owner(std::make_unique<int>(3));
  CHECK(*std::move(owner).value_or(nullptr) == 3);
  CHECK(Result<std::unique_ptr<int>>(Error(Status::busy)).value_or(nullptr) == nullptr);
}

TEST_CASE("and_then goes on with a value, and an error passes by it") {
  int calls = 0;
  const auto half = [&](int value) -> Result<int> {
    ++calls;
    if (value % 2 != 0) return Error(Status::invalid, "odd");
    return value / 2;
  };
  CHECK(Result<int>(12).and_then(half).and_then(half).value() == 3);
  CHECK(calls == 2);
  const auto failed = Result<int>(6).and_then(half).and_then(half).and_then(half);
  CHECK(calls == 4);
  CHECK(failed.error().status() == Status::invalid);
  CHECK(failed.error().what() == "odd"sv);
  const Result<int> constant(4);
  CHECK(constant.and_then(half).value() == 2);
  // From nothing, to nothing, and to another type.
  Result<void> fine;
  CHECK(fine.and_then([] { return Result<std::string>("x"); }).value() == "x");
  CHECK(Result<int>(1).and_then([](int) { return Result<void>(); }).has_value());
  CHECK(Result<std::unique_ptr<int>>(std::make_unique<int>(5))
            .and_then([](std::unique_ptr<int> taken) { return Result<int>(*taken); })
            .value() == 5);
}

TEST_CASE("transform changes the value, or_else and transform_error the error") {
  CHECK(Result<int>(20).transform([](int value) { return std::to_string(value); }).value() == "20");
  CHECK(Result<void>().transform([] { return 3; }).value() == 3);
  int seen = 0;
  CHECK(Result<int>(2).transform([&](int value) { seen = value; }).has_value());
  CHECK(seen == 2);
  const Result<int> busy{Error(Status::busy)};
  CHECK(busy.transform([](int) { return 1; }).error().status() == Status::busy);
  CHECK(busy.or_else([](const Error&) { return Result<int>(9); }).value() == 9);
  CHECK(Result<int>(1).or_else([](const Error&) { return Result<int>(9); }).value() == 1);
  CHECK(busy.transform_error([](const Error&) { return Error(Status::invalid, "why"); }).error().what() == "why"sv);
  CHECK(Result<int>(1).transform_error([](const Error&) { return Error(Status::invalid); }).value() == 1);
}

TEST_CASE("an assignment ends the value that was there, and no other") {
  struct Counted {
    explicit Counted(int* all) : alive(all) { ++*alive; }
    Counted(const Counted& other) noexcept : alive(other.alive) { ++*alive; }
    ~Counted() { --*alive; }
    int* alive;
  };
  int first = 0, second = 0;
  {
    Result<Counted> result{Counted(&first)};
    CHECK(first == 1);
    result = Result<Counted>(Counted(&second));
    CHECK(first == 0);
    CHECK(second == 1);
    auto& same = result;
    result = std::move(same);
    CHECK(second == 1);
    result = Result<Counted>(Error(Status::busy));
    CHECK(second == 0);
    CHECK(result.error().status() == Status::busy);
    const Result<Counted> other{Counted(&first)};
    result = other;
    CHECK(first == 2);
    CHECK(result->alive == &first);
  }
  CHECK(first == 0);
  CHECK(second == 0);
}

TEST_CASE("the value of a const Result is read, or its error thrown") {
  const Result<int> seven(7), failed{Error(Status::limit)};
  CHECK(seven.value() == 7);
  CHECK_THROWS_AS((void)failed.value(), Error);
  const Result<void> nothing;
  nothing.value();
  const Result<void> failure{Error(Status::limit)};
  CHECK_THROWS_AS(failure.value(), Error);
}

TEST_CASE("names are taken as string_view, to their end and no further") {
  const std::string_view all = "0123456789abcdef0123456789abcdefTAIL";
  CHECK(shmbroker::Token::parse(all.substr(0, 32)).text() == all.substr(0, 32));
  CHECK_FALSE(shmbroker::Token::try_parse(all));
  const shmbroker::CreateOptions options{.name = "frames-tail"sv.substr(0, 6)};
  CHECK(options.name == "frames");
  auto session = shmbroker::Session::connect({.local_only = true, .timeout = std::chrono::seconds(1)});
  const auto absent = session.try_attach("absent/tail"sv.substr(0, 6));
  CHECK_FALSE(absent);
  // A NUL inside is a wrong character; cut there, it would be another name.
  const std::string two("one\0two", 7);
  shmbroker::Group group;
  CHECK_FALSE(group.try_variable(two));
  CHECK(group.try_variable("one"));
  CHECK_FALSE(group.try_variable(std::string(5000, 'x')));
}

TEST_CASE("the first object in memory is had by its type, or refused with both sizes") {
  struct Pixel {
    std::uint16_t red, green, blue;
  };
  auto session = shmbroker::Session::connect({.local_only = true});
  auto region = session.create(4);
  region.as<std::uint32_t>() = 5;
  CHECK(region.as_span<std::uint32_t>()[0] == 5);
  const auto small = region.try_as<Pixel>();
  REQUIRE_FALSE(small);
  CHECK(small.error().what() == "what is mapped of the region has 4 bytes; the type asked for has 6"sv);
}

TEST_CASE("a sentence of the library names things as the face of its caller does") {
  shmb_error error{};
  const auto said = [&](const char* sentence, shmb_words words) {
    std::strcpy(error.sentence, sentence);
    shmb_error_words(&error, words);
    return std::string(error.sentence);
  };
  const char* const sentence = "make a region with shmb_create, (SHMB_QUEUE_OPEN_ONLY) or shmb_create.";
  CHECK(said(sentence, SHMB_WORDS_C) == sentence);
  CHECK(said(sentence, SHMB_WORDS_CXX) ==
        "make a region with Session::create, (QueueOptions::open_only) or Session::create.");
  CHECK(said(sentence, SHMB_WORDS_SHELL).starts_with("make a region with shmbroker put, ("));
  // Texts that only look like names, and names of others.
  for (const char* const other : {"/tmp/shmb_create2", "xshmb_create", "SHMB_", "shmb_unheard_of", "shmb"})
    CHECK(said(other, SHMB_WORDS_CXX) == other);
  CHECK(said("at the end shmb_queue_options.spin_ns", SHMB_WORDS_CXX) == "at the end QueueOptions::spin");
  CHECK(said("shmb_message_done.", SHMB_WORDS_CXX) == "Message::done.");
  // As long as it may be, and longer in the other words.
  std::string longest(sizeof error.sentence - 1 - std::strlen("shmb_create"), 'x');
  longest.back() = ' ';
  CHECK(said((longest + "shmb_create").c_str(), SHMB_WORDS_CXX).size() == sizeof error.sentence - 1);
  shmb_error_words(nullptr, SHMB_WORDS_CXX);
  // In a real refusal, in both faces.
  auto session = shmbroker::Session::connect({.local_only = true});
  const auto endless = session.try_ping(shmbroker::Timeout::forever());
  REQUIRE_FALSE(endless);
  CHECK(std::string(endless.error().what()).find("Timeout::forever()") != std::string::npos);
  CHECK(shmb_ping(session.c(), SHMB_FOREVER, &error) == SHMB_E_INVALID);
  CHECK(std::string(error.sentence).find("SHMB_FOREVER") != std::string::npos);
}

}  // namespace result_face
