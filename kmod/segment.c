// SPDX-License-Identifier: GPL-2.0
/* segment.c - sealed memory: what is believed of it, and how a page of it is reached. */
/*
 * A segment is a memfd of ordinary pages whose seals forbid that it shrinks or grows, as lib/state
 * makes them. The module writes its pages past write() and mmap(), which is what seals bind: so it
 * takes no memory that is sealed against writing, nor any that may become so. Whoever is shown such
 * memory counts on it that nobody changes it.
 *
 * The module maps none of it. A page is looked up in the page cache, held for as long as it is
 * used, and found by its kernel address. So a family that gives pages of free rings back to the
 * system (MADV_REMOVE) takes none from under the module: what is looked up next is new.
 *
 * A page that is not there yet is made and charged as if the calling process had touched it.
 */
#include <linux/cred.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>

#include "kmod.h"

int pstn_segment_open(struct pstn_segment *seg, unsigned int memfd)
{
	const unsigned int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	const unsigned int writes = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
	struct file *file = fget(memfd);
	struct inode *inode;

	if (!file)
		return -EBADF;
	inode = file_inode(file);
	if (!shmem_mapping(file->f_mapping) || !S_ISREG(inode->i_mode) ||
	    (READ_ONCE(SHMEM_I(inode)->seals) & (seals | writes)) != seals ||
	    (file->f_mode & (FMODE_READ | FMODE_WRITE)) != (FMODE_READ | FMODE_WRITE)) {
		fput(file);
		return -EINVAL;
	}
	seg->file = file;
	seg->bytes = i_size_read(inode);
	return 0;
}

void pstn_segment_close(struct pstn_segment *seg)
{
	fput(seg->file);
}

bool pstn_segment_same(const struct pstn_segment *a, const struct pstn_segment *b)
{
	return file_inode(a->file) == file_inode(b->file);
}

struct page *pstn_segment_page(const struct pstn_segment *seg, u64 off)
{
	if (off >= seg->bytes)
		return ERR_PTR(-EFAULT);
	return shmem_read_mapping_page(seg->file->f_mapping, off >> PAGE_SHIFT);
}

void pstn_segment_put(struct page *page, bool written)
{
	if (written)
		set_page_dirty(page);
	put_page(page);
}

int pstn_segment_read(const struct pstn_segment *seg, u64 off, void *to, size_t n)
{
	while (n != 0) {
		const size_t part = min_t(size_t, n, PAGE_SIZE - offset_in_page(off));
		struct page *page = pstn_segment_page(seg, off);

		if (IS_ERR(page))
			return PTR_ERR(page);
		memcpy(to, page_address(page) + offset_in_page(off), part);
		pstn_segment_put(page, false);
		to += part;
		off += part;
		n -= part;
	}
	return 0;
}
