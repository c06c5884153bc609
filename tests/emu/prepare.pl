#!/usr/bin/perl
# prepare.pl - makes C++ for a processor of the CUDA module's sources: prepare.pl OUT FILE ...
# writes each file into the folder OUT.
#
# What is not C++ becomes calls of emu.h: an instruction in asm a function that is named here, with
# its outputs and inputs as arguments; <<<...>>> emu_launch; variables in shared memory places of
# the block that runs. An instruction without a name fails to compile, by its own name.
use strict;
use warnings;
use File::Basename;

my @names = ( # of instructions, the first that matches
    [qr/^ld\.relaxed\..*\.v2\./, 'emu_load_two'], [qr/^ld\.(acquire|relaxed)\./, 'emu_load'], [qr/^st\.(release|relaxed)\..*\.v2\./, 'emu_store_two'], [qr/^st\.(release|relaxed)\./, 'emu_store'],
    [qr/^mbarrier\.init/, 'emu_bar_init'], [qr/^mbarrier\.arrive/, 'emu_bar_expect'], [qr/mbarrier\.try_wait/, 'emu_bar_wait'],
    [qr/^cp\.async\.bulk\.shared/, 'emu_bulk_load'], [qr/^cp\.async\.bulk\.global/, 'emu_bulk_store'], [qr/^cp\.async\.bulk\.(commit|wait)/, 'emu_nothing'],
    [qr/^mov\.u64 %0, %globaltimer/, 'emu_clock'], [qr/^fence\./, 'emu_fence'], [qr/^atom\..*\.add\./, 'emu_fetch_add'],
    [qr/^atom\..*\.inc\./, 'emu_fetch_inc'], [qr/^red\..*\.add\./, 'emu_add'], [qr/^red\..*\.max\./, 'emu_max'],
    [qr/barrier\.cta\.red\.or/, 'emu_barrier_or'], [qr/^barrier\.cta\.sync/, 'emu_barrier_sync'], [qr/^barrier\.cta\.arrive/, 'emu_barrier_arrive'],
    [qr/^cp\.async\.c[ga]\..* 16;/, 'emu_copy<16>'], [qr/^cp\.async\.c[ga]\..* 4;/, 'emu_copy<4>'], [qr/^(cp\.async\.(commit|wait)|griddepcontrol)/, 'emu_nothing'],
    [qr/^ld\.shared\.v4/, 'emu_shared_load'], [qr/^ld\.shared\.f32/, 'emu_shared_word'], [qr/^st\.shared\.v4/, 'emu_shared_store']);

# Operands of an asm section: "constraint"(expression), ...
sub operands {
    my @found;
    local $_ = shift // '';
    while (/\G\s*,?\s*"[^"]*"\s*(\((?:[^()]++|(?1))*\))/gc) { push @found, substr($1, 1, -1) }
    return @found;
}

sub instruction {
    my ($all) = @_;
    my $text = '';
    while ($all =~ s/^\s*"((?:[^"\\]|\\.)*)"//) { $text .= $1 }
    my @part = ('', '', '');
    my ($depth, $at, $quoted) = (0, -1, 0);
    for my $c (split //, $all =~ s/::/: :/gr) { # sections end at colons outside of parentheses and strings
        $quoted = !$quoted if $c eq '"';
        $depth += $c eq '(' ? 1 : $c eq ')' ? -1 : 0 if !$quoted;
        if ($c eq ':' && !$depth && !$quoted) { $at++ } elsif ($at >= 0) { $part[$at] .= $c }
    }
    my ($name) = map { $_->[1] } grep { $text =~ $_->[0] } @names;
    $name //= 'emu_unknown_' . ($text =~ s/^([\w.]*).*/$1/sr =~ tr/./_/r);
    return "$name(" . join(', ', operands($part[0]), operands($part[1])) . ')';
}

my $out = shift;
for my $file (@ARGV) {
    open(my $in, '<', $file) or die "$file: $!";
    local $/;
    local $_ = <$in>;
    my $balanced;
    $balanced = qr/\((?:[^()"]++|"(?:[^"\\]|\\.)*"|(??{$balanced}))*\)/;
    # of asm statements the double colon of C++ scopes does not occur
    s/asm volatile($balanced)/instruction(substr($1, 1, -1))/ge;
    s/^(\s+)(.*?)<<<(.*?), [^,<>]+>>>\(([^;]*?)\);/$1emu_launch_as($3, $2, $4);/mg;
    s/^( +)extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];/$1$2 *$3 = ($2 *)emu_dynamic();/mg;
    s{^( +)__shared__ ([\w :]+?(?: \*)?) ?(\*?\w+(?:\[[^\]]+\])*(?:,\s+\w+(?:\[[^\]]+\])*)*);}{
        my ($indent, $type, $list) = ($1, $2, $3);
        $indent . join(' ', map { my ($n, $d) = /^(\*?\w+)(.*)$/; my $star = $n =~ s,^\*,, ? ' *' : '';
            "typedef $type$star emu_t_$n$d; emu_t_$n &$n = *(emu_t_$n *)emu_static(__COUNTER__, sizeof(emu_t_$n));" } split(/,\s+/, $list))
    }mge;
    s/__CUDA_ARCH__/EMU_ARCH/g;
    s/#include <cuda_runtime\.h>/#include "emu.h"/g;
    s{#include "(?:common|ht|expert|remote|ll|copy_engine|p2p|gpu|coll|base)/}{#include "}g; # all files lie in one folder here
    open(my $to, '>', "$out/" . basename($file)) or die "$out: $!";
    print $to $_;
}
