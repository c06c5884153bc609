/*
 * npy.hpp - reads rows of arrays in numpy's .npy format: little-endian, C order, versions 1 to 3.
 *
 * Every rank of a parallel program reads just the rows it needs. Anything unexpected in a file is
 * an exception that names the file.
 */
#ifndef EXAMPLES_NPY_HPP
#define EXAMPLES_NPY_HPP

#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace npy {

/** numpy's name of an element type. */
template <class T> struct Descr;
template <> struct Descr<std::uint8_t> { static constexpr const char *name = "|u1"; };
template <> struct Descr<std::uint16_t> { static constexpr const char *name = "<u2"; };
template <> struct Descr<std::int32_t> { static constexpr const char *name = "<i4"; };
template <> struct Descr<float> { static constexpr const char *name = "<f4"; };

class File {
public:
    explicit File(const std::string &path) : path_(path), in_(path, std::ios::binary) {
        if (!in_)
            fail("cannot be opened");
        const std::uint16_t one = 1;
        unsigned char low;
        std::memcpy(&low, &one, 1);
        if (low != 1)
            fail("holds little-endian numbers, this machine's are big-endian");
        parse(read_header());
    }

    const std::vector<std::size_t> &shape() const { return shape_; }

    /** Rows first .. first + count - 1 along the first dimension, dense. */
    template <class T> std::vector<T> rows(std::size_t first, std::size_t count) {
        if (descr_ != Descr<T>::name)
            fail("has elements '" + descr_ + "', expected '" + Descr<T>::name + "'");
        if (first > shape_[0] || count > shape_[0] - first)
            fail("has " + std::to_string(shape_[0]) + " rows, too few");
        std::size_t width = 1;
        for (std::size_t i = 1; i < shape_.size(); i++)
            width *= shape_[i];
        in_.seekg(0, std::ios::end); /* before memory is taken for what a header claims */
        const std::size_t bytes = static_cast<std::size_t>(in_.tellg());
        if (!in_ || bytes < start_ || (bytes - start_) / sizeof(T) < (first + count) * width)
            fail("is shorter than its header says");
        std::vector<T> values(count * width);
        in_.seekg(static_cast<std::streamoff>(start_ + first * width * sizeof(T)));
        in_.read(reinterpret_cast<char *>(values.data()),
                 static_cast<std::streamsize>(values.size() * sizeof(T)));
        if (!in_)
            fail("is shorter than its header says");
        return values;
    }

    /** The whole array. */
    template <class T> std::vector<T> all() { return rows<T>(0, shape_[0]); }

    /** Fails unless the array has this shape; 0 stands for any extent. */
    void expect(const std::vector<std::size_t> &shape) {
        bool same = shape.size() == shape_.size();
        for (std::size_t i = 0; same && i < shape.size(); i++)
            same = shape[i] == 0 || shape[i] == shape_[i];
        if (!same)
            fail("has shape " + text(shape_) + ", expected " + text(shape) + " (0: any)");
    }

private:
    [[noreturn]] void fail(const std::string &what) {
        throw std::runtime_error(path_ + ": " + what);
    }

    static std::string text(const std::vector<std::size_t> &shape) {
        std::string s = "(";
        for (std::size_t i = 0; i < shape.size(); i++)
            s += (i ? ", " : "") + std::to_string(shape[i]);
        return s + ")";
    }

    std::string read_header() {
        unsigned char head[12];
        in_.read(reinterpret_cast<char *>(head), 10);
        if (!in_ || std::memcmp(head, "\x93NUMPY", 6) != 0 || head[6] < 1 || head[6] > 3)
            fail("is not an .npy file of version 1 to 3");
        std::size_t length = head[8] + 256u * head[9];
        start_ = 10;
        if (head[6] > 1) { /* the length has four bytes from version 2 on */
            in_.read(reinterpret_cast<char *>(head + 10), 2);
            length += 65536u * head[10] + 16777216u * static_cast<std::size_t>(head[11]);
            start_ = 12;
        }
        if (!in_ || length > 65536)
            fail("has a malformed header");
        std::string header(length, ' ');
        in_.read(header.data(), static_cast<std::streamsize>(length));
        if (!in_)
            fail("ends in its header");
        start_ += length;
        return header;
    }

    /** The header is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape':
     * (2048, 256), }. */
    void parse(const std::string &header) {
        descr_ = value(header, "'descr':", '\'', '\'');
        if (header.find("'fortran_order': False") == std::string::npos)
            fail("is not in C order");
        const std::string extents = value(header, "'shape':", '(', ')');
        std::size_t elements = 1;
        for (std::size_t pos = 0; pos < extents.size();) {
            if (extents[pos] == ',' || extents[pos] == ' ') {
                pos++;
                continue;
            }
            std::size_t extent = 0, digits = 0;
            for (;
                 pos < extents.size() && extents[pos] >= '0' && extents[pos] <= '9' && digits < 12;
                 pos++, digits++)
                extent = extent * 10 + static_cast<std::size_t>(extents[pos] - '0');
            if (digits == 0 || (extent != 0 && elements > (std::size_t{1} << 40) / extent))
                fail("has a malformed or enormous shape (" + extents + ")");
            elements *= extent;
            shape_.push_back(extent);
        }
        if (shape_.empty())
            fail("is a scalar, not an array");
    }

    std::string value(const std::string &header, const char *key, char open, char close) {
        std::size_t at = header.find(key);
        std::size_t from = at == std::string::npos ? at : header.find(open, at + std::strlen(key));
        std::size_t to = from == std::string::npos ? from : header.find(close, from + 1);
        if (to == std::string::npos)
            fail(std::string("has no ") + key + " in its header");
        return header.substr(from + 1, to - from - 1);
    }

    std::string path_, descr_;
    std::ifstream in_;
    std::vector<std::size_t> shape_;
    std::size_t start_ = 0; /* bytes before the first element */
};

} // namespace npy

#endif
