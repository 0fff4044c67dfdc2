/** `Bot/:id/$replay`: the bot as it is now, on the input of one of its runs, as the one who asks. */
import { badRequest, notFound } from '../errors.ts'
import { parseBody } from '../fhir/json.ts'
import { isObject } from '../fhir/resource.ts'
import type { Operation, OperationCall } from '../request/operation.ts'
import { createJob, runBot } from './execute.ts'
import { findBot, runAs } from './execute-bot.ts'
import { readInput } from './inputs.ts'
import { findArchivedRun } from './run-records.ts'
import { requireAuthor } from './runs.ts'

const RUN_ID = /^(?:urn:uuid:)?([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/i

/** Errors: 400, 403 for who is no project admin, 404 also for a run whose input was not kept. */
export const replay: Operation = {
  name: 'replay',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  ownFormat: true,
  async run(call) {
    const { services, principal, id = '' } = call
    await requireAuthor(call)
    const runId = readRunId(call)
    const project = principal.isSuperAdmin ? undefined : principal.project.number
    const row = await findArchivedRun(services.database, id, project, runId)
    if (row?.record.archive === undefined) throw notFound()
    const kept = await readInput(services.storage, row.record.archive)
    const found = await findBot(call)
    const acting = await runAs(services, principal, found)
    return await runBot(call, { ...createJob(call, found, acting), ...kept }, found)
  },
}

/** JSON `{runId}`, or Parameters with the same name as `$runs` gives it. */
function readRunId({ request }: OperationCall): string {
  const body = parseBody(request.body ?? '')
  const parameters = isObject(body) && Array.isArray(body.parameter) ? body.parameter : []
  const part = parameters.filter(isObject).find(({ name }) => name === 'runId')
  const given = isObject(body) ? (body.runId ?? part?.valueUuid ?? part?.valueString) : undefined
  const [, runId] = RUN_ID.exec(String(given)) ?? []
  if (runId === undefined) throw badRequest('Expected runId, the id of a run')
  return runId
}
