/**
 * `DocumentReference/$docref`: the documents of a patient, as servers of US Core have to answer.
 * https://hl7.org/fhir/us/core/OperationDefinition-docref.html
 * None is generated on demand, so asking for those alone finds none.
 */
import { badRequest } from '../../errors.ts'
import { parseReference } from '../../fhir/resource.ts'
import type { Operation, OperationCall } from '../../request/operation.ts'
import {
  type Inputs,
  interactionOf,
  type ParameterDefinition,
  readInputs,
} from '../../request/parameters.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { Version } from '../../store/rows/version.ts'
import { entryOf } from '../everything.ts'
import { pageReply } from '../interaction.ts'
import { found } from '../search/criteria.ts'
import { conceptKeys } from './lastn.ts'

const MOST_DOCUMENTS = 1000

const PARAMETERS: readonly ParameterDefinition[] = [
  { name: 'patient', kind: 'reference' },
  { name: 'start', kind: 'text' },
  { name: 'end', kind: 'text' },
  { name: 'type', kind: 'token' },
  { name: 'on-demand', kind: 'flag' },
  { name: 'profile', kind: 'text', many: true },
]

/** Errors: 400, 404 for a patient whom the caller does not see. */
export const docref: Operation = {
  name: 'docref',
  on: [{ type: 'DocumentReference', level: 'type' }],
  definition: 'http://hl7.org/fhir/us/core/OperationDefinition/docref',
  methods: ['GET', 'POST'],
  async run(call) {
    const { services, principal } = call
    const inputs = readInputs(call, PARAMETERS)
    const id = patientId(inputs.required('patient'))
    await services.repository.read(principal, 'Patient', id)
    const versions = inputs.flag('on-demand') ? [] : await documents(call, inputs, id)
    const interaction = interactionOf(call)
    const entries = versions.map((version) => entryOf(interaction, version, 'match'))
    return pageReply(interaction, { type: 'searchset', total: entries.length, links: [] }, entries)
  },
}

function patientId(text: string): string {
  const { type, id } = parseReference(text.includes('/') ? text : `Patient/${text}`) ?? {}
  if (type === 'Patient' && id !== undefined) return id
  throw badRequest('"patient" must be the id of a Patient', 'patient')
}

/** Dates are those of the care that a document is about. Without any, the newest of each type is meant. */
async function documents(
  call: OperationCall,
  inputs: Inputs,
  id: string,
): Promise<readonly Version[]> {
  const query = new URLSearchParams({ patient: `Patient/${id}`, status: 'current', _sort: '-date' })
  const [start, end, type] = ['start', 'end', 'type'].map((name) => inputs.text(name))
  if (start !== undefined) query.append('period', `ge${start}`)
  if (end !== undefined) query.append('period', `le${end}`)
  if (type !== undefined) query.append('type', type)
  const profiles = inputs.texts('profile')
  if (profiles.length > 0) query.append('_profile', profiles.join(','))
  const { versions } = await found(call, 'DocumentReference', query, { count: MOST_DOCUMENTS })
  if (start !== undefined || end !== undefined) return versions
  const seen = new Set<string>()
  return versions.filter((version) => {
    const keys = conceptKeys(parseVersion(version).type)
    const isOlder = keys.some((key) => seen.has(key))
    for (const key of keys) seen.add(key)
    return !isOlder
  })
}
