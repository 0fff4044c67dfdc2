/** Entry point of the console: nonce, session, then pages. */
import '@mantine/core/styles.css'
import '@mantine/charts/styles.css'
import '@mantine/notifications/styles.css'
import './console.css'
import {
  Button,
  Center,
  createTheme,
  MantineProvider,
  Modal,
  Notification,
  Title,
} from '@mantine/core'
import { Notifications } from '@mantine/notifications'
import { QueryClient, QueryClientProvider } from '@tanstack/react-query'
import { createRoot } from 'react-dom/client'
import { Router } from 'wouter'
import { nonce } from './client/nonce.ts'
import { Problem } from './client/problem.tsx'
import { MeProvider, readMe, signedIn, startSignIn } from './client/session.ts'
import { Shell } from './shell.tsx'
import { texts } from './texts/texts.ts'

/** Enter in a list chooses an option or does nothing. It does not send the form around the list. */
function keepEnter(event: React.KeyboardEvent<HTMLInputElement>): void {
  const { dataset, value } = event.currentTarget
  // An open list without options is not expanded for ARIA.
  const isOpen = dataset.expanded !== undefined
  if (event.key === 'Enter' && (isOpen || value !== '')) event.preventDefault()
}

const theme = createTheme({
  fontFamily: 'system-ui, sans-serif',
  fontFamilyMonospace: 'ui-monospace, monospace',
  primaryShade: { light: 8, dark: 8 },
  defaultRadius: 'md',
  autoContrast: true,
  cursorType: 'pointer',
  components: {
    Notification: Notification.extend({
      defaultProps: { closeButtonProps: { 'aria-label': texts.common.close } },
    }),
    Modal: Modal.extend({
      defaultProps: {
        closeButtonProps: { 'aria-label': texts.common.close },
        // The head of a dialog is not a second head of the page.
        attributes: { header: { role: 'presentation' } },
      },
    }),
    // By name, so that the first page does not load the components.
    Select: { defaultProps: { onKeyDown: keepEnter, selectFirstOptionOnChange: true } },
    MultiSelect: { defaultProps: { onKeyDown: keepEnter } },
    Autocomplete: { defaultProps: { onKeyDown: keepEnter } },
    // The title of a section, until the page sets its own.
    Title: Title.extend({ defaultProps: { order: 2, size: 'h4' } }),
  },
})

const queries = new QueryClient({
  defaultOptions: {
    // The API client retries by itself.
    queries: { retry: false, refetchOnWindowFocus: false, staleTime: 2000 },
    mutations: { retry: false },
  },
})

const root = createRoot(document.getElementById('root') ?? document.body)

function render(content: React.ReactNode): void {
  root.render(
    <MantineProvider theme={theme} defaultColorScheme="auto" getStyleNonce={() => nonce}>
      <Notifications position="bottom-right" />
      <QueryClientProvider client={queries}>{content}</QueryClientProvider>
    </MantineProvider>,
  )
}

/** The service has one redirect address for sign-ins. */
function isElsewhere(): boolean {
  const { origin } = document.body.dataset
  if (origin === undefined || origin === location.origin) return false
  location.replace(origin + location.pathname + location.search)
  return true
}

async function start(): Promise<void> {
  if (isElsewhere()) return
  try {
    await signedIn()
    const me = await readMe()
    render(
      <MeProvider value={me}>
        <Router base="/console">
          <Shell />
        </Router>
      </MeProvider>,
    )
  } catch (error) {
    render(
      <Center mih="100vh" p="md">
        <Problem title={texts.session.failed} error={error}>
          <Button onClick={() => void startSignIn()}>{texts.session.signIn}</Button>
        </Problem>
      </Center>,
    )
  }
}

void start()
