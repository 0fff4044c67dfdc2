/** Pages of resources as replies: small ones as one text, large ones as the connection takes them. */

import { signerOf } from '../binary/attachments.ts'
import { type BundleHead, bundlePieces, bundleText } from '../fhir/bundle.ts'
import { ownTurn } from '../platform/event-loop-turns.ts'
import { piecesReply, textReply } from '../request/reply.ts'
import type { FhirReply, Interaction } from '../request/request.ts'

export interface PageEntry {
  /** The resource as it is stored, empty without one. */
  readonly content: string
  /** The JSON text of the entry; asked for once. */
  readonly write: () => string
}

/** From here on a page as one text, and again as bytes, would be much memory at once. */
const LARGE_PAGE = 262_144

export async function pageReply(
  { services, principal, request, preferences }: Interaction,
  head: BundleHead,
  entries: readonly PageEntry[],
): Promise<FhirReply> {
  const size = entries.reduce((sum, { content }) => sum + content.length, 0)
  const isSmall = size < LARGE_PAGE
  if (isSmall || request.takesPieces !== true) {
    const texts: string[] = []
    for (const { write } of entries) {
      texts.push(write())
      if (!isSmall) await ownTurn()
    }
    return textReply(200, bundleText(head, texts))
  }
  const contents = entries.map(({ content }) => content)
  const sign = await signerOf(services, principal, contents)
  const waiting = entries.toReversed()
  // Each is let go of when it is written: a caller that reads slowly holds what it has not read.
  function* written(): Iterable<string> {
    for (let entry = waiting.pop(); entry !== undefined; entry = waiting.pop()) {
      yield sign(entry.write())
    }
  }
  return piecesReply(200, bundlePieces(head, written(), preferences.pretty))
}
