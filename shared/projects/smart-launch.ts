/** `$smart-launch`: opens an app for a patient or an encounter. https://hl7.org/fhir/smart-app-launch/app-launch.html */
import { badRequest } from '../errors.ts'
import { parseReference, referenceIn } from '../fhir/resource.ts'
import type { Operation, OperationCall } from '../request/operation.ts'
import { readInputs } from '../request/parameters.ts'
import { emptyReply } from '../request/reply.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { onBehalfOf } from './provision.ts'

/** Whoever may read the client and what it is launched for. Errors: 400, 403, 404. */
export const smartLaunch: Operation = {
  name: 'smart-launch',
  on: [{ type: 'ClientApplication', level: 'instance' }],
  methods: ['POST'],
  async run(call) {
    const { services, principal, id = '' } = call
    const { repository, config } = services
    const client = parseVersion(await repository.read(principal, 'ClientApplication', id))
    const { launchUri } = client
    if (typeof launchUri !== 'string' || !URL.canParse(launchUri)) {
      throw badRequest('Client has no launchUri', 'ClientApplication.launchUri')
    }
    const context = await contextOf(call)
    const launch = await repository.create(onBehalfOf(principal), {
      resourceType: 'SmartAppLaunch',
      meta: { project: client.meta?.project ?? principal.project.id },
      ...context,
    })
    const url = new URL(launchUri)
    url.searchParams.set('iss', `${config.baseUrl}fhir/R4/`)
    url.searchParams.set('launch', launch.id)
    return emptyReply(302, { Location: url.href })
  },
}

/** An encounter brings its patient along. */
async function contextOf(call: OperationCall) {
  const { services, principal } = call
  const inputs = readInputs(call, [
    { name: 'patient', kind: 'text' },
    { name: 'encounter', kind: 'text' },
  ])
  const patient = inputs.text('patient')
  const encounter = inputs.text('encounter')
  if ((patient === undefined) === (encounter === undefined)) {
    throw badRequest('Expected either patient or encounter')
  }
  if (patient !== undefined) {
    const found = await services.repository.read(principal, 'Patient', idOf('Patient', patient))
    return { patient: { reference: `Patient/${found.id}` } }
  }
  const id = idOf('Encounter', encounter ?? '')
  const found = await services.repository.read(principal, 'Encounter', id)
  const subject = parseReference(referenceIn(parseVersion(found).subject))
  return {
    encounter: { reference: `Encounter/${found.id}` },
    ...(subject?.type === 'Patient' ? { patient: { reference: `Patient/${subject.id}` } } : {}),
  }
}

/** An id, or a reference of the type. */
function idOf(type: string, text: string): string {
  const parsed = parseReference(text)
  if (parsed?.type === type) return parsed.id
  if (/^[A-Za-z0-9\-.]{1,64}$/.test(text)) return text
  throw badRequest(`Expected the id of a ${type}`)
}
