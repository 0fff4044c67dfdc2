/** Every operation of the service: routing, the CapabilityStatement and checks read this table. */
import { cancel } from '../jobs.ts'
import type { Operation } from '../operation.ts'
import { clone } from './clone.ts'
import { csv } from './csv.ts'
import { deploy } from './deploy.ts'
import { everything } from './everything.ts'
import { execute } from './execute.ts'
import { expand } from './expand.ts'
import { expandProfile } from './expand-profile.ts'
import { explainPolicy } from './explain-policy.ts'
import { exportData } from './export.ts'
import { expunge } from './expunge.ts'
import { graph } from './graph.ts'
import { graphql } from './graphql.ts'
import { importRows } from './import.ts'
import { importResources } from './import-resources.ts'
import { init } from './init.ts'
import { logs } from './logs.ts'
import { lookup, subsumes } from './lookup.ts'
import { meta, metaAdd, metaDelete } from './meta.ts'
import { redeliver } from './redeliver.ts'
import { reindex } from './reindex.ts'
import { replay } from './replay.ts'
import { resend } from './resend.ts'
import { rotateSecret } from './rotate-secret.ts'
import { runs } from './runs.ts'
import { setAccounts } from './set-accounts.ts'
import { smartLaunch } from './smart-launch.ts'
import { subscriptionStatus } from './subscription-status.ts'
import { translate } from './translate.ts'
import { updateEmail } from './update-email.ts'
import { validate } from './validate.ts'
import { validateCode } from './validate-code.ts'
import { versions } from './versions.ts'
import { wsBindingToken } from './ws-binding-token.ts'

export const operations: readonly Operation[] = [
  cancel,
  clone,
  csv,
  deploy,
  everything,
  execute,
  expand,
  expandProfile,
  explainPolicy,
  exportData,
  expunge,
  graph,
  graphql,
  importResources,
  importRows,
  init,
  logs,
  lookup,
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
  translate,
  updateEmail,
  validate,
  validateCode,
  versions,
  wsBindingToken,
]
