/**
 * An upload into a bucket, in parts. A part is collected in one of a few blocks that are used again and
 * again, so that an upload of any size holds these and no more.
 */
import {
  AbortMultipartUploadCommand,
  type CompletedPart,
  CompleteMultipartUploadCommand,
  CreateMultipartUploadCommand,
  ListMultipartUploadsCommand,
  type ListMultipartUploadsCommandInput,
  type ListMultipartUploadsCommandOutput,
  PutObjectCommand,
  type PutObjectCommandInput,
  type S3Client,
  UploadPartCommand,
} from '@aws-sdk/client-s3'
import { release } from './chunks.ts'

interface ObjectName {
  readonly Bucket: string
  readonly Key: string
}

/** https://docs.aws.amazon.com/AmazonS3/latest/userguide/serv-side-encryption.html */
export type Encryption = Pick<PutObjectCommandInput, 'ServerSideEncryption' | 'SSEKMSKeyId'>

/** While they are on their way one more is filled. */
const PARTS_IN_FLIGHT = 2

/** Nothing is left in the bucket when it fails. Throws what `source` throws. */
export async function uploadObject(
  client: S3Client,
  object: ObjectName,
  source: AsyncIterable<Uint8Array>,
  { partBytes, encryption }: { readonly partBytes: number; readonly encryption: Encryption },
): Promise<void> {
  const stored = { ...object, ...encryption }
  const blocks = createBlocks(partBytes)
  const parts: Promise<CompletedPart>[] = []
  let UploadId: string | undefined
  const sendPart = async (block: Buffer, size: number, PartNumber: number) => {
    const Body = block.subarray(0, size)
    const { ETag } = await client.send(
      new UploadPartCommand({ ...object, UploadId, PartNumber, Body }),
    )
    blocks.giveBack(block)
    return { ETag, PartNumber }
  }
  try {
    for await (const { block, size } of filled(source, blocks.take)) {
      if (UploadId === undefined && size < partBytes) {
        await client.send(new PutObjectCommand({ ...stored, Body: block.subarray(0, size) }))
        blocks.giveBack(block)
        blocks.drop()
        return
      }
      UploadId ??= (await client.send(new CreateMultipartUploadCommand(stored))).UploadId
      if (size === 0) {
        blocks.giveBack(block)
        break
      }
      const part = sendPart(block, size, parts.length + 1)
      // The failure rejects whatever waits for a block, or for all parts.
      part.catch(blocks.fail)
      parts.push(part)
    }
    const MultipartUpload = { Parts: await Promise.all(parts) }
    await client.send(new CompleteMultipartUploadCommand({ ...object, UploadId, MultipartUpload }))
    blocks.drop()
  } catch (error) {
    await Promise.allSettled(parts)
    // Why it failed is what the caller must hear, whatever comes of this.
    const abort = new AbortMultipartUploadCommand({ ...object, UploadId })
    if (UploadId !== undefined) await client.send(abort).catch(() => undefined)
    throw error
  }
}

/** Aborts uploads that began before a time: their parts are paid for, though nobody sends the others any more. */
export async function abortUploads(
  client: S3Client,
  place: { readonly Bucket: string; readonly Prefix: string },
  before: Date,
): Promise<void> {
  const { Bucket } = place
  let next: Pick<ListMultipartUploadsCommandInput, 'KeyMarker' | 'UploadIdMarker'> | undefined = {}
  while (next !== undefined) {
    const page: ListMultipartUploadsCommandOutput = await client.send(
      new ListMultipartUploadsCommand({ ...place, ...next }),
    )
    for (const { Key, UploadId, Initiated } of page.Uploads ?? []) {
      if (Initiated === undefined || Initiated >= before) continue
      await client.send(new AbortMultipartUploadCommand({ Bucket, Key, UploadId }))
    }
    const { IsTruncated, NextKeyMarker: KeyMarker, NextUploadIdMarker: UploadIdMarker } = page
    next = IsTruncated && KeyMarker !== undefined ? { KeyMarker, UploadIdMarker } : undefined
  }
}

/** The content as full blocks and a last one that is not, which may be empty. */
async function* filled(
  source: AsyncIterable<Uint8Array>,
  take: () => Promise<Buffer>,
): AsyncGenerator<{ readonly block: Buffer; readonly size: number }> {
  let block = await take()
  let size = 0
  for await (const chunk of source) {
    for (let from = 0; from < chunk.length; ) {
      const more = Math.min(chunk.length - from, block.length - size)
      block.set(chunk.subarray(from, from + more), size)
      size += more
      from += more
      if (size < block.length) continue
      yield { block, size }
      block = await take()
      size = 0
    }
    release(chunk)
  }
  yield { block, size }
}

function createBlocks(bytes: number) {
  const free: Buffer[] = []
  let made = 0
  let waiting: PromiseWithResolvers<Buffer> | undefined
  let failure: { readonly reason: unknown } | undefined
  return {
    async take(): Promise<Buffer> {
      if (failure !== undefined) throw failure.reason
      const block = free.pop()
      if (block !== undefined) return block
      if (made <= PARTS_IN_FLIGHT) {
        made += 1
        return Buffer.allocUnsafeSlow(bytes)
      }
      waiting = Promise.withResolvers<Buffer>()
      return waiting.promise
    },
    giveBack(block: Buffer): void {
      if (waiting === undefined) free.push(block)
      else waiting.resolve(block)
      waiting = undefined
    },
    /** When all is answered: of a part that failed the connection may still read. */
    drop(): void {
      for (const block of free.splice(0)) release(block)
    },
    fail(reason: unknown): void {
      failure ??= { reason }
      waiting?.reject(reason)
      waiting = undefined
    },
  }
}
