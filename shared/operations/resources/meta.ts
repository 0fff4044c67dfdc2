/** Tags, security labels and profiles: https://hl7.org/fhir/R4/resource-operation-meta.html */

import { badRequest } from '../../core/errors.ts'
import { parseJson } from '../../fhir/json.ts'
import { asArray, isObject, type Resource } from '../../fhir/resource.ts'
import { parametersReply, readInputs, toInteraction } from '../../request/parameters.ts'
import type { FhirReply, InputTexts, Operation, OperationCall } from '../../request/request.ts'
import { validateForWrite } from '../../rest/interaction.ts'
import { patchWithPreCommit } from '../../rest/pre-commit.ts'

export const meta: Operation = {
  name: 'meta',
  on: [{ level: 'system' }, { level: 'type' }, { level: 'instance' }],
  standard: 'Resource',
  methods: ['GET', 'POST'],
  onlyReads: true,
  text: { summary: 'Read tags, labels and profiles', answer: 'Parameters' },
  async run(call) {
    readInputs(call)
    const { services, principal, type = '', id } = call
    if (id === undefined) {
      const summary = await services.repository.metaSummary(principal, type || undefined)
      const lists = Object.entries(summary).filter(([, list]) => list.length > 0)
      const used = lists.length === 0 ? undefined : Object.fromEntries(lists)
      return parametersReply([['return', 'valueMeta', used]])
    }
    const { content } = await services.repository.read(principal, type, id)
    return metaReply(content)
  },
}

const CHANGE: InputTexts = { meta: 'object!: Of these `profile`, `security` and `tag`' }

export const metaAdd: Operation = {
  name: 'meta-add',
  on: [{ level: 'instance' }],
  standard: 'Resource',
  methods: ['POST'],
  inputs: CHANGE,
  text: { summary: 'Add tags, labels and profiles', answer: 'Parameters' },
  run: (call) => change(call, (items, given) => [...items, ...given.filter(isNew(items))]),
}

/** Removing absent values is not an error. */
export const metaDelete: Operation = {
  name: 'meta-delete',
  on: [{ level: 'instance' }],
  standard: 'Resource',
  methods: ['POST'],
  inputs: CHANGE,
  text: { summary: 'Remove tags, labels and profiles', answer: 'Parameters' },
  run: (call) => change(call, (items, given) => items.filter(isNew(given))),
}

const LISTS = ['profile', 'security', 'tag'] as const
/** A caller may send the whole meta that it read; the standard takes only the lists. */
const IGNORED = new Set([
  'id',
  'extension',
  'versionId',
  'lastUpdated',
  'source',
  'project',
  'author',
  'account',
  'accounts',
  'compartment',
])

type Change = (items: readonly unknown[], given: readonly unknown[]) => readonly unknown[]

/** Creates no version for an unchanged resource. */
async function change(call: OperationCall, apply: Change): Promise<FhirReply> {
  const { type = '', id = '' } = call
  const given = readInputs(call).object('meta')
  if (given === undefined) throw badRequest('Missing required parameter "meta"', 'meta')
  for (const name in given) {
    if (IGNORED.has(name)) continue
    const path = `meta.${name.slice(0, 64)}`
    if (!LISTS.some((one) => one === name)) throw badRequest(`${path} does not exist`, path)
    if (!Array.isArray(given[name])) throw badRequest(`${path} must be a list`, path)
  }
  const context = toInteraction(call)
  const written = await patchWithPreCommit(context, {
    type,
    id,
    apply: async (current) => {
      const changed: Record<string, unknown> = { ...current.meta }
      for (const name of LISTS) {
        const items = apply(asArray(current.meta?.[name]), asArray(given[name]))
        if (items.length > 0) changed[name] = items
        else delete changed[name]
      }
      const { resource } = await validateForWrite(context, {
        ...current,
        meta: changed,
      } as Resource)
      return resource
    },
  })
  return metaReply(written.content)
}

function isNew(items: readonly unknown[]): (item: unknown) => boolean {
  const known = new Set(items.map(metaItemKey))
  return (item) => !known.has(metaItemKey(item))
}

function metaItemKey(item: unknown): string {
  return JSON.stringify(isObject(item) ? [item.system ?? '', item.code ?? ''] : item)
}

function metaReply(content: string | undefined): FhirReply {
  const resource = parseJson(content ?? '{}') as Resource
  return parametersReply([['return', 'valueMeta', resource.meta]])
}
