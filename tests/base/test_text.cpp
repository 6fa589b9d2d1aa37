// SPDX-License-Identifier: Apache-2.0
// Sizes and durations as people write them, and outside bytes made safe for a terminal.
#include <doctest/doctest.h>

#include <cerrno>
#include <cstdint>

#include "base/text.hpp"

using namespace std::string_literals;

namespace {

constexpr std::int64_t kTextSecond = 1'000'000'000;

std::string why(const auto& result) {
  return result ? "accepted as " + std::to_string(*result) : result.error().sentence;
}

}  // namespace

TEST_CASE("sizes are read exactly") {
  struct Sample {
    const char* text;
    std::uint64_t bytes;
  };
  for (const Sample& sample : {Sample{"0", 0},
                               {"4096", 4096},
                               {"4096B", 4096},
                               {"64K", 65536},
                               {"64k", 65536},
                               {"64KB", 65536},
                               {"64KiB", 65536},
                               {"64 MiB", 67108864},
                               {"1.5G", 1610612736},
                               {"2TiB", std::uint64_t{2} << 40},
                               {"1P", std::uint64_t{1} << 50},
                               {"15E", std::uint64_t{15} << 60},
                               {"0.5K", 512},
                               {"00012", 12},
                               {"18446744073709551615", UINT64_MAX},
                               {"15.999999999E", 18446744072556630111u},
                               {"1.0000000000000000001K", 1024}}) {
    CAPTURE(sample.text);
    const auto size = shmb::parse_size(sample.text);
    REQUIRE_MESSAGE(size, why(size));
    CHECK(*size == sample.bytes);
  }
}

TEST_CASE("text that is no size is refused with a sentence that quotes it") {
  for (const char* text : {"",
                           " ",
                           "K",
                           ".5K",
                           "1.",
                           "1.K",
                           "-1",
                           "-1K",
                           "+1",
                           "1e9",
                           "0x10",
                           "1.5",
                           "1.5B",
                           "1KK",
                           "1Kib8",
                           "1Z",
                           "64 K B",
                           " 64K",
                           "64K ",
                           "1..5K",
                           "1.5.5K",
                           "18446744073709551616",
                           "16E",
                           "99999999999999999999999999999999",
                           "18014398509481984K",
                           "nan",
                           "inf",
                           "10%"}) {
    CAPTURE(text);
    const auto size = shmb::parse_size(text);
    REQUIRE_FALSE(size);
    CHECK(size.error().status == shmb::Status::invalid);
    CHECK(size.error().sentence.find(shmb::quoted(text)) != std::string::npos);
  }
}

TEST_CASE("a share of the whole is a percentage or a size") {
  CHECK(shmb::parse_size_or_percent("50%", 1000).value() == 500);
  CHECK(shmb::parse_size_or_percent("0%", 1000).value() == 0);
  CHECK(shmb::parse_size_or_percent("100%", UINT64_MAX).value() == UINT64_MAX);
  CHECK(shmb::parse_size_or_percent("12.5%", 8000).value() == 1000);
  CHECK(shmb::parse_size_or_percent("3M", 1000).value() == 3u << 20);
  for (const char* text : {"%", "101%", "100.1%", "-5%", "5%%", "5K%", "18446744073709551616%", "x%"}) {
    CAPTURE(text);
    CHECK_FALSE(shmb::parse_size_or_percent(text, 1000));
  }
}

TEST_CASE("durations are read exactly") {
  struct Sample {
    const char* text;
    std::int64_t nanoseconds;
  };
  for (const Sample& sample : {Sample{"0", 0},
                               {"250ms", kTextSecond / 4},
                               {"10s", 10 * kTextSecond},
                               {"1.5s", 3 * kTextSecond / 2},
                               {"5m", 300 * kTextSecond},
                               {"5min", 300 * kTextSecond},
                               {"2h", 7200 * kTextSecond},
                               {"7d", 7 * 86400 * kTextSecond},
                               {"120us", 120'000},
                               {"9ns", 9},
                               {"0s", 0},
                               {"until-released", -1},
                               {"forever", -1},
                               {"9223372036854775807ns", INT64_MAX}}) {
    CAPTURE(sample.text);
    const auto duration = shmb::parse_duration(sample.text);
    REQUIRE_MESSAGE(duration, why(duration));
    CHECK(*duration == sample.nanoseconds);
  }
}

TEST_CASE("text that is no duration is refused with a sentence that quotes it") {
  for (const char* text : {"", "10", "-1s", "-1", "s", "10 seconds", "1h30m", "1.s", "10S", "1e3s", "0x1s", "forever!",
                           "9223372036854775808ns", "106752d", "99999999999999999999s", "FOREVER"}) {
    CAPTURE(text);
    const auto duration = shmb::parse_duration(text);
    REQUIRE_FALSE(duration);
    CHECK(duration.error().sentence.find(shmb::quoted(text)) != std::string::npos);
  }
}

TEST_CASE("sizes are written with one decimal, exact below 1 KiB") {
  CHECK(shmb::format_size(0) == "0 B");
  CHECK(shmb::format_size(512) == "512 B");
  CHECK(shmb::format_size(1023) == "1023 B");
  CHECK(shmb::format_size(1024) == "1.0 KiB");
  CHECK(shmb::format_size(64 << 20) == "64.0 MiB");
  CHECK(shmb::format_size(1610612736) == "1.5 GiB");
  CHECK(shmb::format_size((1 << 20) - 1) == "1.0 MiB");
  CHECK(shmb::format_size(1023 * 1024) == "1023.0 KiB");
  CHECK(shmb::format_size(UINT64_MAX) == "16.0 EiB");
}

TEST_CASE("durations are written in at most two units") {
  CHECK(shmb::format_duration(-1) == "until released");
  CHECK(shmb::format_duration(0) == "0");
  CHECK(shmb::format_duration(999) == "999ns");
  CHECK(shmb::format_duration(120'000) == "120us");
  CHECK(shmb::format_duration(1'500'000) == "1.5ms");
  CHECK(shmb::format_duration(3 * kTextSecond / 2) == "1.5s");
  CHECK(shmb::format_duration(10 * kTextSecond) == "10s");
  CHECK(shmb::format_duration(600 * kTextSecond) == "10m");
  CHECK(shmb::format_duration(90 * kTextSecond) == "1m30s");
  CHECK(shmb::format_duration(11520 * kTextSecond) == "3h12m");
  CHECK(shmb::format_duration(7 * 86400 * kTextSecond) == "7d");
  CHECK(shmb::format_duration(25 * 3600 * kTextSecond) == "1d1h");
  CHECK(shmb::format_duration(INT64_MAX) == "106751d23h");
}

TEST_CASE("a duration in one unit is read back as it was written") {
  for (const std::int64_t ns :
       {std::int64_t{250'000'000}, 10 * kTextSecond, 300 * kTextSecond, 7200 * kTextSecond, 604800 * kTextSecond})
    CHECK(shmb::parse_duration(shmb::format_duration(ns)).value() == ns);
}

TEST_CASE("bytes from outside cannot reach a terminal as control codes") {
  CHECK(shmb::quoted("plain name") == "'plain name'");
  CHECK(shmb::quoted("") == "''");
  CHECK(shmb::quoted("a\x1b[31m\n\0b"s) == R"('a\x1b[31m\x0a\x00b')");
  CHECK(shmb::quoted("it's \\") == R"('it\x27s \x5c')");
  CHECK(shmb::quoted("\xff\x7f\xc3\xa4") == R"('\xff\x7f\xc3\xa4')");
}

TEST_CASE("quoting shows at most 120 bytes and says that there were more") {
  CHECK(shmb::quoted(std::string(120, 'x')) == "'" + std::string(120, 'x') + "'");
  CHECK(shmb::quoted(std::string(121, 'x')) == "'" + std::string(120, 'x') + "'...");
}

TEST_CASE("an errno is written as text and name") {
  CHECK(shmb::errno_text(ENOSPC) == "No space left on device (ENOSPC)");
  CHECK(shmb::errno_text(99999) == "error 99999");
  CHECK(shmb::errno_text(-1) == "error -1");
}

TEST_CASE("a status is written by its name, an unknown one by its number") {
  CHECK(shmb::status_text(shmb::Status::ok) == "ok");
  CHECK(shmb::status_text(shmb::Status::not_found) == "not_found");
  CHECK(shmb::status_text(shmb::Status::system) == "system");
  CHECK(shmb::status_text(shmb::Status::forked) == "forked");
  CHECK(shmb::status_text(static_cast<shmb::Status>(4711)) == "status 4711");
  CHECK(shmb::status_text(static_cast<shmb::Status>(-3)) == "status -3");
}
