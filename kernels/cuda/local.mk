# kernels/cuda/ - the kernels of the CUDA module, a folder for each path and for what they share.
# src/gpu/module.cu is its table. The module is loaded by dlopen from where the library is. The
# runtime is linked statically, the driver not at all.
cuda_host = \
	src/gpu/module.cu src/gpu/module_memory.cu src/gpu/module_share.cu src/gpu/module_stream.cu
cuda_units = \
	kernels/cuda/ht/combine.cu kernels/cuda/ht/dispatch.cu kernels/cuda/ht/route.cu \
	kernels/cuda/expert/expert_combine.cu kernels/cuda/expert/expert_dispatch.cu \
	kernels/cuda/expert/expert_place.cu \
	kernels/cuda/remote/remote_combine.cu kernels/cuda/remote/remote_dispatch.cu \
	kernels/cuda/remote/remote_expert_combine.cu kernels/cuda/remote/remote_expert_dispatch.cu \
	kernels/cuda/ll/ll_combine.cu kernels/cuda/ll/ll_dispatch.cu kernels/cuda/ll/ll_remote.cu \
	kernels/cuda/ll/ll_route.cu \
	kernels/cuda/copy_engine/copy_engine.cu kernels/cuda/p2p/p2p.cu $(cuda_host)
cuda_headers = \
	kernels/cuda/common/copy.cuh kernels/cuda/common/device.cuh kernels/cuda/common/elem.cuh \
	kernels/cuda/common/launch.h kernels/cuda/common/quant.cuh kernels/cuda/common/ring.cuh \
	kernels/cuda/common/sums.cuh \
	kernels/cuda/expert/expert.cuh kernels/cuda/expert/expert_combine.cuh \
	kernels/cuda/expert/expert_route.cuh kernels/cuda/expert/expert_rows.cuh \
	kernels/cuda/expert/expert_sum.cuh \
	kernels/cuda/remote/forward.cuh kernels/cuda/remote/remote.cuh \
	kernels/cuda/remote/remote_expert.cuh \
	kernels/cuda/ll/ll.cuh kernels/cuda/ll/ll_answers.cuh kernels/cuda/ll/ll_block.cuh \
	kernels/cuda/ll/ll_call.cuh kernels/cuda/ll/ll_room.cuh kernels/cuda/ll/ll_route.cuh \
	kernels/cuda/ll/ll_rows.cuh kernels/cuda/ll/ll_sum.cuh kernels/cuda/ll/ll_team.cuh \
	kernels/cuda/ll/ll_tokens.cuh \
	kernels/cuda/copy_engine/copy_engine.cuh kernels/cuda/copy_engine/copy_engine_kernels.cuh
cuda_deps = src/gpu/cuda_module.h src/gpu/module.h src/base/kind.h coll/record.h coll/wire.h \
	include/mpix_device.cuh include/mpix_device.h $(cuda_headers)
EXTRA_DIST += $(cuda_units) $(cuda_headers) src/gpu/module.h
CLEANFILES += libmpixep_cuda.so $(cuda_units:.cu=.nv.o)

if HAVE_CUDA
cudamoduledir = $(libdir)
cudamodule_DATA = libmpixep_cuda.so

kernels/cuda/ht/combine.nv.o: kernels/cuda/ht/combine.cu
kernels/cuda/ht/dispatch.nv.o: kernels/cuda/ht/dispatch.cu
kernels/cuda/ht/route.nv.o: kernels/cuda/ht/route.cu
kernels/cuda/expert/expert_combine.nv.o: kernels/cuda/expert/expert_combine.cu
kernels/cuda/expert/expert_dispatch.nv.o: kernels/cuda/expert/expert_dispatch.cu
kernels/cuda/expert/expert_place.nv.o: kernels/cuda/expert/expert_place.cu
kernels/cuda/remote/remote_combine.nv.o: kernels/cuda/remote/remote_combine.cu
kernels/cuda/remote/remote_dispatch.nv.o: kernels/cuda/remote/remote_dispatch.cu
kernels/cuda/remote/remote_expert_combine.nv.o: kernels/cuda/remote/remote_expert_combine.cu
kernels/cuda/remote/remote_expert_dispatch.nv.o: kernels/cuda/remote/remote_expert_dispatch.cu
kernels/cuda/ll/ll_combine.nv.o: kernels/cuda/ll/ll_combine.cu
kernels/cuda/ll/ll_dispatch.nv.o: kernels/cuda/ll/ll_dispatch.cu
kernels/cuda/ll/ll_remote.nv.o: kernels/cuda/ll/ll_remote.cu
kernels/cuda/ll/ll_route.nv.o: kernels/cuda/ll/ll_route.cu
kernels/cuda/copy_engine/copy_engine.nv.o: kernels/cuda/copy_engine/copy_engine.cu
kernels/cuda/p2p/p2p.nv.o: kernels/cuda/p2p/p2p.cu
src/gpu/module.nv.o: src/gpu/module.cu
src/gpu/module_memory.nv.o: src/gpu/module_memory.cu
src/gpu/module_share.nv.o: src/gpu/module_share.cu
src/gpu/module_stream.nv.o: src/gpu/module_stream.cu
CUDA_COMPILE = $(NVCC) -std=c++17 $(NVCCFLAGS) $(NVCC_GENCODE) -I$(top_srcdir)/include \
	-I$(top_srcdir)/src -I$(top_srcdir) -I$(top_srcdir)/kernels/cuda \
	-Xcompiler -fPIC,-fvisibility=default
$(cuda_units:.cu=.nv.o): $(cuda_deps)
	$(AM_V_GEN)$(MKDIR_P) `dirname $@` && \
	  $(CUDA_COMPILE) -c -o $@ $(top_srcdir)/`echo $@ | sed 's/nv[.]o$$/cu/'`

libmpixep_cuda.so: $(cuda_units:.cu=.nv.o)
	$(AM_V_GEN)$(NVCC) $(NVCC_GENCODE) -shared -o $@ $(cuda_units:.cu=.nv.o)
endif
