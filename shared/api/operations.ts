/** All operations of the service, for routing, the CapabilityStatement and checks. */

import { execute } from '../bots/execute.ts'
import { exportData } from '../export/export.ts'
import { graphql } from '../graphql/serve.ts'
import { importRows } from '../import/import.ts'
import { importResources } from '../import/resources.ts'
import { expunge, reindex } from '../jobs/async-requests.ts'
import { deploy } from '../operations/bots/deploy.ts'
import { logs, replay, runs } from '../operations/bots/runs.ts'
import { apply } from '../operations/clinical/apply.ts'
import { docref, document } from '../operations/clinical/document.ts'
import { everything } from '../operations/clinical/everything.ts'
import { extract } from '../operations/clinical/extract.ts'
import { lastn } from '../operations/clinical/lastn.ts'
import { match, memberMatch } from '../operations/clinical/match.ts'
import { summary } from '../operations/clinical/summary.ts'
import { clone } from '../operations/projects/clone.ts'
import { explainPolicy } from '../operations/projects/explain-policy.ts'
import { setAccounts } from '../operations/projects/set-accounts.ts'
import { updateEmail } from '../operations/projects/update-email.ts'
import { csv } from '../operations/resources/csv.ts'
import { graph } from '../operations/resources/graph.ts'
import { meta, metaAdd, metaDelete } from '../operations/resources/meta.ts'
import { validate } from '../operations/resources/validate.ts'
import { book } from '../operations/scheduling/book.ts'
import { find } from '../operations/scheduling/find.ts'
import { lookup, subsumes } from '../operations/terminology/lookup.ts'
import { translate } from '../operations/terminology/translate.ts'
import { validateCode } from '../operations/terminology/validate-code.ts'
import { init } from '../projects/init.ts'
import { rotateSecret, smartLaunch } from '../projects/provision.ts'
import { jsonReply } from '../request/reply.ts'
import type { Operation } from '../request/request.ts'
import { redeliver, resend, subscriptionStatus } from '../subscriptions/pending-deliveries.ts'
import { wsBindingToken } from '../subscriptions/socket-subscriptions.ts'
import { expand, expandProfile } from '../terminology/expand.ts'
import { cancel } from './jobs.ts'

/** FHIR versions served: https://hl7.org/fhir/R4/capabilitystatement-operation-versions.html */
const versions: Operation = {
  name: 'versions',
  on: [{ level: 'system' }],
  standard: 'CapabilityStatement',
  methods: ['GET'],
  ownFormat: true,
  async run() {
    const body = { versions: ['4.0'], default: '4.0' }
    return jsonReply(200, body, { 'Content-Type': 'application/json; charset=utf-8' })
  },
}

export const operations: readonly Operation[] = [
  apply,
  book,
  cancel,
  clone,
  csv,
  deploy,
  docref,
  document,
  everything,
  execute,
  expand,
  expandProfile,
  explainPolicy,
  exportData,
  expunge,
  extract,
  find,
  graph,
  graphql,
  importResources,
  importRows,
  init,
  lastn,
  logs,
  lookup,
  match,
  memberMatch,
  meta,
  metaAdd,
  metaDelete,
  redeliver,
  reindex,
  replay,
  resend,
  rotateSecret,
  runs,
  setAccounts,
  smartLaunch,
  subscriptionStatus,
  subsumes,
  summary,
  translate,
  updateEmail,
  validate,
  validateCode,
  versions,
  wsBindingToken,
]
