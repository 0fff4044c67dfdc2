/**
 * Lines as the member may see them. Mostly they are the bytes that are stored; only what holds something
 * hidden, or the address of a Binary, is read and written anew.
 */
import { hiddenFields } from '../../access/fields.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Version } from '../repository.ts'
import { present } from '../rows.ts'
import { without } from '../shown.ts'
import type { Selection } from './select.ts'

/** Fields of a row of `copySql` → its line, without a line feed. */
export type Show = (content: Buffer, metaExtension: Buffer, ruling: number | undefined) => Buffer

export function showOf(selection: Selection, baseUrl: string): Show {
  const absolute = absoluteBinaries(baseUrl)
  const change = changeOf(selection)
  if (change === undefined) return absolute
  return (content, metaExtension, ruling) =>
    absolute(Buffer.from(change(content.toString(), metaExtension.toString(), ruling)))
}

type Change = (content: string, metaExtension: string, ruling: number | undefined) => string

/** Undefined: nothing is hidden. */
function changeOf({ principal, scene, ruled }: Selection): Change | undefined {
  const { type } = scene
  const grants = grantsFor(principal, type, 'search') ?? []
  const all = grants.flatMap(({ hidden }) => hidden)
  const isMasked = hiddenFields(principal, type).length > 0 || type === 'Subscription'
  if (all.length === 0 && !isMasked) return undefined
  const alike = grants[0]?.hidden ?? []
  return (content, metaExtension, ruling) => {
    const version: Version = {
      type,
      id: '',
      ver: 0,
      lastUpdated: new Date(0),
      content,
      metaAt: 0,
      metaExtension,
    }
    // A row that none of them governs any more shows what all of them show.
    const hidden = ruled === undefined ? alike : (ruled[ruling ?? -1]?.hidden ?? all)
    return present(without(version, hidden), principal, false)
  }
}

const MARK = Buffer.from('"Binary/')
const MEMBER = /("(?:url|path)":\s*)"(Binary\/[A-Za-z0-9\-.]{1,64})"/g

/** Attachments hold relative addresses, which say nothing outside of this server. */
function absoluteBinaries(baseUrl: string): (content: Buffer) => Buffer {
  const base = JSON.stringify(`${baseUrl}fhir/R4/`).slice(0, -1)
  return (content) => {
    if (!content.includes(MARK)) return content
    return Buffer.from(content.toString().replace(MEMBER, `$1${base}$2"`))
  }
}
